/* SPDX-License-Identifier: Apache-2.0 */
/* Prefills a document once and asks three questions of different lengths in one ragged batch, each
 * on its own fork. Asking each alone, on a document prefilled anew, gives the same bits. */
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include <headrace/headrace.h>

template <auto Destroy> struct With {
    template <class T> void operator()(T *object) const { Destroy(&object); }
};
using Context = std::unique_ptr<hr_context, With<hr_close>>;
using Cache = std::unique_ptr<hr_cache, With<hr_cache_destroy>>;
using Seq = std::unique_ptr<hr_seq, With<hr_seq_destroy>>;
using Step = std::unique_ptr<hr_step, With<hr_step_destroy>>;

static void check(hr_context *context, hr_status status)
{
    if (status != HR_OK)
        throw std::runtime_error(hr_error_text(context));
}

/* The handle that a create function gives, owned. */
template <class Owner, class Create> static Owner make(hr_context *context, Create create)
{
    typename Owner::pointer object = nullptr;
    check(context, create(&object));
    return Owner(object);
}

constexpr int kQueryHeads = 8, kKvHeads = 2, kDim = 128;

/* What a model would compute for tokens of a text: rows of q, k and v. */
struct Rows {
    std::vector<float> q, k, v;
    Rows &add(unsigned seed, int64_t tokens)
    {
        std::minstd_rand random(seed);
        for (auto *x : {&q, &k, &v})
            for (int64_t n = tokens * kDim * (x == &q ? kQueryHeads : kKvHeads); n > 0; n--)
                x->push_back(float(random() >> 15) / 32768.0f - 1);
        return *this;
    }
};

/* One step: n_new[i] of the rows go to seqs[i]. Returns the output rows. */
static std::vector<float> forward(hr_context *context, hr_step *step, const Rows &rows,
                                  std::vector<hr_seq *> seqs, std::vector<int64_t> n_new)
{
    std::vector<float> out(rows.q.size());
    hr_batch batch{sizeof(batch), int32_t(seqs.size()), seqs.data(), n_new.data(), nullptr,
                   nullptr};
    hr_append_args append{sizeof(append), HR_FP32, rows.k.data(), rows.v.data(), 0, 0, 0, 0};
    hr_attend_args attend{};
    attend.struct_size = sizeof(attend), attend.q_dtype = attend.out_dtype = HR_FP32;
    attend.q = rows.q.data(), attend.out = out.data();
    check(context, hr_step_begin(step, &batch));
    check(context, hr_step_append(step, 0, &append));
    check(context, hr_step_attend(step, 0, &attend));
    check(context, hr_step_commit(step, nullptr));
    return out;
}

int main()
{
    constexpr int64_t kDocument = 300;
    hr_layer_options layer{kQueryHeads, kKvHeads, kDim, 0, HR_BF16, 0, 0, 0, 0, false};
    hr_cache_options geometry{sizeof(geometry), sizeof(layer), &layer, 1};
    hr_step_limits limits{sizeof(limits), 3, kDocument, kDocument};
    auto owner = make<Context>(nullptr, [](auto p) { return hr_open(nullptr, p); });
    hr_context *context = owner.get();
    auto new_cache = [&](auto p) { return hr_cache_create(context, &geometry, p); };
    auto cache = make<Cache>(context, new_cache);
    auto new_step = [&](auto p) { return hr_step_create(cache.get(), &limits, p); };
    auto step = make<Step>(context, new_step);
    auto ask = [&](hr_seq *seq, unsigned seed, int64_t tokens) {
        return forward(context, step.get(), Rows().add(seed, tokens), {seq}, {tokens});
    };
    auto new_seq = [&](auto p) { return hr_seq_create(cache.get(), p); };
    auto document = make<Seq>(context, new_seq);
    ask(document.get(), 1, kDocument);
    auto fork = [&](auto p) { return hr_seq_fork(document.get(), kDocument, p); };
    auto a = make<Seq>(context, fork), b = make<Seq>(context, fork), c = make<Seq>(context, fork);
    auto together = forward(context, step.get(), Rows().add(2, 5).add(3, 40).add(4, 1),
                            {a.get(), b.get(), c.get()}, {5, 40, 1});

    for (auto [tokens, offset, seed] : {std::array{5, 0, 2}, {40, 5, 3}, {1, 45, 4}}) {
        auto seq = make<Seq>(context, new_seq);
        ask(seq.get(), 1, kDocument);
        auto alone = ask(seq.get(), unsigned(seed), tokens);
        const float *want = &together[size_t(offset) * kQueryHeads * kDim];
        if (std::memcmp(alone.data(), want, alone.size() * sizeof(float)) != 0)
            return std::printf("a question of %d tokens has other bits alone\n", tokens), 1;
    }
    return std::puts("3 questions, 1 prefill: the bits of 3 prefills") < 0;
}
