/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/token_bpe.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS = 256, SHIFTED_MAX = 0x144, NONE = -1, DEAD = -2 };

/* A merge of two neighbouring tokens; the lowest rank goes first. */
struct merge {
    int32_t left, right; /* left NONE: an empty slot */
    int32_t result;
    uint32_t rank;
};

/* A pair of neighbours that may merge, in the queue of a word. */
struct candidate {
    uint32_t rank;
    uint32_t at; /* node of the left one */
    uint32_t merge;
};

/* One token of a word under way; it begins at the byte that is its index. */
struct node {
    int32_t id; /* NONE: a byte without a token; DEAD: merged into its left neighbour */
    uint32_t previous, next;
};

#define NO_NODE UINT32_MAX

struct bpe {
    const struct gguf *file;
    struct gguf_array tokens;
    int32_t *ids_by_text; /* open addressing, a power of two */
    uint64_t id_mask;
    size_t longest_bytes;
    struct merge *merges; /* open addressing, a power of two */
    uint64_t merge_mask;
    int32_t unit_ids[UNITS];
    char unit_texts[UNITS][2];
    uint8_t unit_bytes[UNITS]; /* of each unit's text: 1 or 2 */

    /* Scratch of bpe_encode, grown as words need it. */
    char *whole; /* a word in units, up to the longest token and one unit more */
    struct node *nodes;
    struct candidate *queue;
    size_t n_queue;
    size_t capacity;
};

static bool is_own_unit(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad && byte <= 0xff);
}

static void fill_units(struct bpe *bpe)
{
    uint32_t shifted = 0x100;
    for (uint32_t byte = 0; byte < UNITS; byte++) {
        uint32_t point = is_own_unit(byte) ? byte : shifted++;
        char *text = bpe->unit_texts[byte];
        bpe->unit_bytes[byte] = point < 0x80 ? 1 : 2;
        text[0] = (char)(point < 0x80 ? point : 0xc0 | point >> 6);
        text[1] = (char)(point < 0x80 ? 0 : 0x80 | (point & 0x3f));
    }
}

/* The byte that a unit stands for, or NONE for a character that is no unit. */
static int byte_of_point(uint32_t point)
{
    if (point < 0x100)
        return is_own_unit(point) ? (int)point : NONE;
    if (point >= SHIFTED_MAX)
        return NONE;
    uint32_t nth = point - 0x100; /* the nth byte that is not its own unit */
    return (int)(nth < 0x21 ? nth : nth < 0x43 ? nth - 0x21 + 0x7f : 0xad);
}

size_t bpe_decode(struct gguf_str text, char *out)
{
    size_t n = 0;
    for (uint64_t i = 0; i < text.n_bytes;) {
        uint8_t first = (uint8_t)text.bytes[i];
        bool is_pair = first >= 0xc2 && first <= 0xdf && i + 1 < text.n_bytes;
        uint32_t point =
            is_pair ? (uint32_t)(first & 0x1f) << 6 | ((uint8_t)text.bytes[i + 1] & 0x3f) : first;
        int byte = first < 0x80 || is_pair ? byte_of_point(point) : NONE;
        if (byte == NONE) { /* no unit: the text stands for itself */
            out[n++] = text.bytes[i++];
            continue;
        }
        out[n++] = (char)byte;
        i += is_pair ? 2 : 1;
    }
    return n;
}

static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ (uint8_t)bytes[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return hash;
}

static uint64_t spread(uint64_t hash)
{
    hash = (hash ^ hash >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* The slot of a text given in two parts: its own, or the empty one where it would go. */
static uint64_t text_slot(const struct bpe *bpe, const char *a, size_t a_bytes, const char *b,
                          size_t b_bytes)
{
    uint64_t hash = hash_bytes(hash_bytes(UINT64_C(0xcbf29ce484222325), a, a_bytes), b, b_bytes);
    for (uint64_t slot = spread(hash);; slot++) {
        int32_t id = bpe->ids_by_text[slot & bpe->id_mask];
        if (id == NONE)
            return slot & bpe->id_mask;
        struct gguf_str text = gguf_array_str(&bpe->tokens, (uint64_t)id);
        if (text.n_bytes == a_bytes + b_bytes && memcmp(text.bytes, a, a_bytes) == 0 &&
            memcmp(text.bytes + a_bytes, b, b_bytes) == 0)
            return slot & bpe->id_mask;
    }
}

int32_t bpe_find(const struct bpe *bpe, const char *text, size_t n_bytes)
{
    return bpe->ids_by_text[text_slot(bpe, text, n_bytes, "", 0)];
}

static uint64_t merge_slot(const struct bpe *bpe, int32_t left, int32_t right)
{
    for (uint64_t slot = spread((uint64_t)left << 32 | (uint32_t)right);; slot++) {
        const struct merge *merge = &bpe->merges[slot & bpe->merge_mask];
        if (merge->left == NONE || (merge->left == left && merge->right == right))
            return slot & bpe->merge_mask;
    }
}

/* A power of two that is at least twice n, so that a search ends soon. */
static uint64_t table_size(uint64_t n)
{
    uint64_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static bool fail_at(const struct bpe *bpe, const void *inside, char *error, const char *what,
                    uint64_t i, const char *why)
{
    gguf_explain(error, gguf_name(bpe->file), gguf_offset(bpe->file, inside), "%s[%" PRIu64 "] %s",
                 what, i, why);
    return false;
}

static bool fail_memory(const struct bpe *bpe, char *error)
{
    gguf_explain(error, gguf_name(bpe->file), 0, "no memory for the tokenizer");
    return false;
}

static bool index_tokens(struct bpe *bpe, char *error)
{
    static const char what[] = "tokenizer.ggml.tokens";
    uint64_t n = bpe->tokens.n, size = table_size(n);
    bpe->ids_by_text = malloc(size * sizeof *bpe->ids_by_text);
    if (!bpe->ids_by_text)
        return fail_memory(bpe, error);
    memset(bpe->ids_by_text, 0xff, size * sizeof *bpe->ids_by_text);
    bpe->id_mask = size - 1;
    for (uint64_t i = 0; i < n; i++) {
        struct gguf_str text = gguf_array_str(&bpe->tokens, i);
        if (text.n_bytes == 0) /* a place holder: no text can be it */
            continue;
        if (utf8_check(text.bytes, text.n_bytes) < text.n_bytes)
            return fail_at(bpe, text.bytes, error, what, i, "is not UTF-8");
        uint64_t slot = text_slot(bpe, text.bytes, text.n_bytes, "", 0);
        if (bpe->ids_by_text[slot] != NONE)
            return fail_at(bpe, text.bytes, error, what, i, "has the text of an earlier token");
        bpe->ids_by_text[slot] = (int32_t)i;
        bpe->longest_bytes = text.n_bytes > bpe->longest_bytes ? text.n_bytes : bpe->longest_bytes;
    }
    for (int byte = 0; byte < UNITS; byte++)
        bpe->unit_ids[byte] = bpe_find(bpe, bpe->unit_texts[byte], bpe->unit_bytes[byte]);
    bpe->whole = malloc(bpe->longest_bytes + 2);
    return bpe->whole || fail_memory(bpe, error);
}

static bool add_merge(struct bpe *bpe, struct gguf_str text, uint32_t rank, char *error)
{
    static const char what[] = "tokenizer.ggml.merges";
    const char *space = text.n_bytes > 1 ? memchr(text.bytes + 1, ' ', text.n_bytes - 1) : NULL;
    if (!space)
        return fail_at(bpe, text.bytes, error, what, rank, "has no space between two parts");
    size_t left_bytes = (size_t)(space - text.bytes);
    size_t right_bytes = text.n_bytes - left_bytes - 1;
    struct merge merge = {
        .left = bpe_find(bpe, text.bytes, left_bytes),
        .right = bpe_find(bpe, space + 1, right_bytes),
        .result = bpe->ids_by_text[text_slot(bpe, text.bytes, left_bytes, space + 1, right_bytes)],
        .rank = rank,
    };
    if (merge.left == NONE || merge.right == NONE || merge.result == NONE)
        return fail_at(bpe, text.bytes, error, what, rank,
                       merge.left == NONE    ? "has a left part that is no token"
                       : merge.right == NONE ? "has a right part that is no token"
                                             : "gives a text that is no token");
    struct merge *slot = &bpe->merges[merge_slot(bpe, merge.left, merge.right)];
    if (slot->left == NONE) /* else the earlier one has the better rank */
        *slot = merge;
    return true;
}

static bool index_merges(struct bpe *bpe, const struct gguf_array *merges, char *error)
{
    uint64_t size = table_size(merges->n);
    bpe->merges = malloc(size * sizeof *bpe->merges);
    if (!bpe->merges)
        return fail_memory(bpe, error);
    memset(bpe->merges, 0xff, size * sizeof *bpe->merges);
    bpe->merge_mask = size - 1;
    for (uint64_t i = 0; i < merges->n; i++)
        if (!add_merge(bpe, gguf_array_str(merges, i), (uint32_t)i, error))
            return false;
    return true;
}

struct bpe *bpe_open(const struct gguf *file, char *error)
{
    struct gguf_array tokens, merges;
    if (gguf_get_array(file, "tokenizer.ggml.tokens", GGUF_STR, &tokens, error) ||
        gguf_get_array(file, "tokenizer.ggml.merges", GGUF_STR, &merges, error))
        return NULL;
    struct bpe *bpe = calloc(1, sizeof *bpe);
    if (!bpe) {
        gguf_explain(error, gguf_name(file), 0, "no memory for the tokenizer");
        return NULL;
    }
    bpe->file = file;
    bpe->tokens = tokens;
    fill_units(bpe);
    if (index_tokens(bpe, error) && index_merges(bpe, &merges, error))
        return bpe;
    bpe_close(bpe);
    return NULL;
}

void bpe_close(struct bpe *bpe)
{
    if (!bpe)
        return;
    free(bpe->ids_by_text);
    free(bpe->merges);
    free(bpe->whole);
    free(bpe->nodes);
    free(bpe->queue);
    free(bpe);
}

uint32_t bpe_n_tokens(const struct bpe *bpe)
{
    return (uint32_t)bpe->tokens.n;
}

struct gguf_str bpe_text(const struct bpe *bpe, int32_t id)
{
    return gguf_array_str(&bpe->tokens, (uint64_t)id);
}

/* A binary heap: the lowest rank first, and of equal ranks the leftmost. */
static bool goes_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void queue_push(struct bpe *bpe, struct candidate candidate)
{
    size_t i = bpe->n_queue++;
    for (; i > 0 && goes_before(&candidate, &bpe->queue[(i - 1) / 2]); i = (i - 1) / 2)
        bpe->queue[i] = bpe->queue[(i - 1) / 2];
    bpe->queue[i] = candidate;
}

static struct candidate queue_pop(struct bpe *bpe)
{
    struct candidate first = bpe->queue[0];
    struct candidate last = bpe->queue[--bpe->n_queue];
    size_t i = 0;
    for (size_t child = 1; child < bpe->n_queue; child = 2 * i + 1) {
        if (child + 1 < bpe->n_queue && goes_before(&bpe->queue[child + 1], &bpe->queue[child]))
            child++;
        if (!goes_before(&bpe->queue[child], &last))
            break;
        bpe->queue[i] = bpe->queue[child];
        i = child;
    }
    bpe->queue[i] = last;
    return first;
}

/* Queues the pair that begins at node `at`, if there is one and it merges. */
static void consider(struct bpe *bpe, uint32_t at)
{
    if (at == NO_NODE || bpe->nodes[at].next == NO_NODE)
        return;
    int32_t left = bpe->nodes[at].id, right = bpe->nodes[bpe->nodes[at].next].id;
    if (left == NONE || right == NONE)
        return;
    uint64_t slot = merge_slot(bpe, left, right);
    if (bpe->merges[slot].left == NONE)
        return;
    queue_push(bpe, (struct candidate){bpe->merges[slot].rank, at, (uint32_t)slot});
}

static bool reserve(struct bpe *bpe, size_t n)
{
    if (n <= bpe->capacity)
        return true;
    size_t capacity = n < 256 ? 256 : n + n / 2;
    free(bpe->nodes);
    free(bpe->queue);
    bpe->capacity = 0;
    bpe->nodes = malloc(capacity * sizeof *bpe->nodes);
    /* n - 1 pairs at first; each merge takes its own away and adds at most two. */
    bpe->queue = malloc(2 * capacity * sizeof *bpe->queue);
    if (!bpe->nodes || !bpe->queue)
        return false;
    bpe->capacity = capacity;
    return true;
}

static void merge_all(struct bpe *bpe, uint32_t n)
{
    struct node *nodes = bpe->nodes;
    bpe->n_queue = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        consider(bpe, i);
    while (bpe->n_queue) {
        struct candidate best = queue_pop(bpe);
        const struct merge *merge = &bpe->merges[best.merge];
        struct node *node = &nodes[best.at];
        uint32_t right = node->next;
        if (node->id != merge->left || right == NO_NODE || nodes[right].id != merge->right)
            continue; /* one of the two has merged with another since */
        node->id = merge->result;
        node->next = nodes[right].next;
        nodes[right].id = DEAD;
        if (node->next != NO_NODE)
            nodes[node->next].previous = best.at;
        consider(bpe, node->previous);
        consider(bpe, best.at);
    }
}

/* The id of a word that is a token as it stands, or NONE. */
static int32_t find_whole(const struct bpe *bpe, const char *word, size_t n_bytes)
{
    if (n_bytes > bpe->longest_bytes)
        return NONE;
    size_t n = 0;
    for (size_t i = 0; i < n_bytes && n <= bpe->longest_bytes; i++) {
        uint8_t byte = (uint8_t)word[i];
        memcpy(bpe->whole + n, bpe->unit_texts[byte], 2);
        n += bpe->unit_bytes[byte];
    }
    return n > bpe->longest_bytes ? NONE : bpe_find(bpe, bpe->whole, n);
}

enum bpe_result bpe_encode(struct bpe *bpe, const char *word, size_t n_bytes, bool takes_whole,
                           struct tokens *out, size_t *bad_at)
{
    int32_t whole = takes_whole ? find_whole(bpe, word, n_bytes) : NONE;
    if (whole != NONE)
        return tokens_push(out, whole) ? BPE_OK : BPE_NO_MEMORY;
    if (!reserve(bpe, n_bytes))
        return BPE_NO_MEMORY;
    uint32_t n = (uint32_t)n_bytes;
    for (uint32_t i = 0; i < n; i++)
        bpe->nodes[i] = (struct node){bpe->unit_ids[(uint8_t)word[i]], i ? i - 1 : NO_NODE,
                                      i + 1 < n ? i + 1 : NO_NODE};
    merge_all(bpe, n);
    for (uint32_t i = 0; n && i != NO_NODE; i = bpe->nodes[i].next) {
        *bad_at = i;
        if (bpe->nodes[i].id == NONE)
            return BPE_NO_TOKEN;
        if (!tokens_push(out, bpe->nodes[i].id))
            return BPE_NO_MEMORY;
    }
    return BPE_OK;
}

/* Bytes of the character that begins at text, 0 if it is malformed or NUL. */
static size_t utf8_length(const uint8_t *text, size_t n_bytes)
{
    uint8_t first = text[0];
    if (first < 0x80)
        return first != 0;
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || length > n_bytes)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    bool is_overlong = (first == 0xe0 && text[1] < 0xa0) || (first == 0xf0 && text[1] < 0x90);
    bool is_surrogate = first == 0xed && text[1] > 0x9f;
    bool is_beyond = first == 0xf4 && text[1] > 0x8f;
    return is_overlong || is_surrogate || is_beyond ? 0 : length;
}

size_t utf8_check(const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes;) {
        size_t length = utf8_length((const uint8_t *)text + i, n_bytes - i);
        if (length == 0)
            return i;
        i += length;
    }
    return n_bytes;
}
