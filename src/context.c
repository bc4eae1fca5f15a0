/* SPDX-License-Identifier: Apache-2.0 */
#include "src/context.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launch.h"
#include "src/base/topo.h"
#include "src/exec.h"
#include "src/tiers.h"

enum { THREADS_MAX = 1024 };

static hr_status check_options(const hr_options *o, struct hr_error *error)
{
    if (o->threads < 0 || o->threads > THREADS_MAX)
        return hr_fail(error, HR_E_INVALID, "options.threads is %d; 0 to %d are allowed",
                       o->threads, THREADS_MAX);
    if (o->device_bytes > 0 && o->device_bytes < HR_EXTENT_BYTES)
        return hr_fail(
            error, HR_E_INVALID,
            "options.device_bytes is %llu; the smallest budget is one extent of %d bytes",
            (unsigned long long)o->device_bytes, HR_EXTENT_BYTES);
    if (o->device_bytes > (uint64_t)INT64_MAX / 2)
        return hr_fail(error, HR_E_INVALID,
                       "options.device_bytes is %llu; at most %lld are allowed",
                       (unsigned long long)o->device_bytes, (long long)INT64_MAX / 2);
    if (o->io && strcmp(o->io, "uring") != 0 && strcmp(o->io, "threads") != 0)
        return hr_fail(error, HR_E_INVALID, "options.io is \"%.40s\"; it must be uring or threads",
                       o->io);
    if (o->patience_ms < 0 || o->patience_ms > HR_PATIENCE_MS_MAX)
        return hr_fail(error, HR_E_INVALID, "options.patience_ms is %lld; 0 to %lld are allowed",
                       (long long)o->patience_ms, HR_PATIENCE_MS_MAX);
    if (o->debug_wave_blocks < 0)
        return hr_fail(error, HR_E_INVALID, "options.debug_wave_blocks is %lld; it must be >= 0",
                       (long long)o->debug_wave_blocks);
    if (o->allocator && (!o->allocator->alloc || !o->allocator->free))
        return hr_fail(error, HR_E_INVALID, "options.allocator needs both alloc and free");
    return HR_OK;
}

/* The level asked for by the options or the environment; the CPU's best when neither does. */
static hr_status choose_caps(const hr_options *o, struct hr_error *error, enum hr_caps *caps)
{
    const char *from = o->caps ? "options.caps" : "HEADRACE_CAPS";
    const char *name = o->caps ? o->caps : getenv("HEADRACE_CAPS");
    enum hr_caps best = hr_caps_detect();
    *caps = best;
    if (!name || !*name)
        return HR_OK;
    int level = hr_caps_parse(name);
    if (level < 0)
        return hr_fail(error, HR_E_INVALID,
                       "%s is \"%.40s\"; it must be portable, avx2, avx512bf16 or amx", from, name);
    if (level > (int)best)
        return hr_fail(error, HR_E_UNSUPPORTED, "%s asks for %s; the best level of this CPU is %s",
                       from, name, hr_caps_name(best));
    *caps = (enum hr_caps)level;
    return HR_OK;
}

static uint64_t default_budget(void)
{
    enum { FALLBACK_EXTENTS = 512 };
    uint64_t bytes = hr_topo_memory_available() / 4 * 3;
    return bytes >= HR_EXTENT_BYTES ? bytes : (uint64_t)FALLBACK_EXTENTS * HR_EXTENT_BYTES;
}

static void do_nothing(const void *args, int64_t item, void *scratch)
{
    (void)args;
    (void)item;
    (void)scratch;
}

/* The planned-with kernels, that do nothing. */
static void make_dry(hr_context *c)
{
    c->dry_kernels = *c->kernels;
    c->dry_kernels.tile = c->dry_kernels.chunk = do_nothing;
    c->dry_kernels.fold = c->dry_kernels.append = do_nothing;
    c->kernels = &c->dry_kernels;
}

static hr_status open_host(hr_context *c, const hr_options *o, struct hr_error *error)
{
    c->exec = &hr_exec_host;
    uint64_t bytes = o->device_bytes ? o->device_bytes : default_budget();
    struct hr_dev_host_options host = {
        .alloc = &c->alloc,
        .arena_bytes = bytes / HR_EXTENT_BYTES * HR_EXTENT_BYTES,
        .threads = o->threads ? o->threads : hr_topo_cores(),
        .bind = !o->unbound,
        .scratch_bytes = c->kernels->scratch_bytes(),
    };
    switch (hr_dev_host_open(&host, &c->dev)) {
    case HR_DEV_OK:
        break;
    case HR_DEV_NO_ARENA:
        return hr_fail(error, HR_E_SYSTEM,
                       "mmap of %llu bytes for the K/V arena: %s (options.device_bytes sets it)",
                       (unsigned long long)host.arena_bytes, strerror(errno));
    case HR_DEV_NO_THREADS:
        return hr_fail(error, HR_E_SYSTEM,
                       "one of %d threads could not be started: %s (options.threads sets it)",
                       host.threads, strerror(errno));
    case HR_DEV_NO_MEMORY:
        return hr_fail(error, HR_E_NO_MEMORY,
                       "no memory for the host device: %d threads with %zu bytes of scratch each",
                       host.threads, host.scratch_bytes);
    }
    return HR_OK;
}

/* The number behind "cuda" or "cuda:"; -1: another device. */
static int32_t cuda_ordinal(const char *device)
{
    int32_t n = 0;
    if (!device || strncmp(device, "cuda", 4) != 0)
        return -1;
    if (device[4] == '\0')
        return 0;
    if (device[4] != ':' || strspn(device + 5, "0123456789") != strlen(device + 5) ||
        strlen(device + 5) < 1 || strlen(device + 5) > 4)
        return -1;
    for (const char *p = device + 5; *p; p++)
        n = n * 10 + (*p - '0');
    return n;
}

#ifdef HR_HAVE_CUDA
static hr_status open_cuda(hr_context *c, const hr_options *o, int32_t ordinal,
                           struct hr_error *error)
{
    char why[HR_DEV_TEXT_BYTES] = "";
    if (!hr_cu_level_known(o->caps))
        return hr_fail(error, HR_E_INVALID,
                       "options.caps is \"%.40s\"; with CUDA it must be sm80 or sm90", o->caps);
    struct hr_dev_cuda_options options = {
        .alloc = &c->alloc,
        .ordinal = ordinal,
        .arena_bytes = o->device_bytes / HR_EXTENT_BYTES * HR_EXTENT_BYTES,
        .arena_unit = HR_EXTENT_BYTES,
        .why = why,
    };
    enum hr_dev_cuda_fault fault = hr_dev_cuda_open(&options, &c->dev);
    if (fault == HR_DEV_CUDA_NO_MEMORY)
        return hr_fail(error, HR_E_NO_MEMORY, "cuda:%d: %s", ordinal, why);
    if (fault != HR_DEV_CUDA_OK)
        return hr_fail(error, HR_E_DEVICE, "cuda:%d: %s", ordinal, why);
    const struct hr_dev_cuda_info *info = hr_dev_cuda_info(c->dev);
    if (hr_cu_level_choose(info->major, info->minor, o->caps, why) == 0)
        return hr_fail(error, HR_E_UNSUPPORTED, "cuda:%d: %s", ordinal, why);
    c->cuda = hr_cu_kernels_load(c->dev, &c->alloc, o->caps, why);
    if (!c->cuda)
        return hr_fail(error, c->dev->ops->error(c->dev) ? HR_E_DEVICE : HR_E_NO_MEMORY,
                       "cuda:%d: %s", ordinal, why);
    c->kernels = hr_cu_planner(hr_cu_kernels_level(c->cuda));
    c->exec = &hr_exec_cuda;
    return HR_OK;
}
#else
static hr_status open_cuda(hr_context *c, const hr_options *o, int32_t ordinal,
                           struct hr_error *error)
{
    (void)c;
    (void)o;
    return hr_fail(error, HR_E_DEVICE,
                   "cuda:%d: this build has no CUDA part: it was made without nvcc of CUDA 12.6 or "
                   "later, or with -Dcuda=disabled",
                   ordinal);
}
#endif

static hr_status open_device(hr_context *c, const hr_options *o, const struct hr_hooks *hooks,
                             struct hr_error *error)
{
    int32_t ordinal = cuda_ordinal(o->device);
    enum hr_caps caps;
    hr_status status = HR_OK;
    if (ordinal < 0 && o->device && strcmp(o->device, "host") != 0)
        return hr_fail(error, HR_E_INVALID,
                       "options.device is \"%.40s\"; it must be host, cuda or cuda: and a number",
                       o->device);
    if (ordinal < 0)
        status = choose_caps(o, error, &caps);
    if (status == HR_OK && ordinal < 0) {
        c->kernels = hr_kernels_select(caps);
        c->dry = o->dry_run;
        if (c->dry)
            make_dry(c);
        status = open_host(c, o, error);
    } else if (status == HR_OK && o->dry_run) {
        return hr_fail(error, HR_E_UNSUPPORTED, "options.dry_run is for the host device");
    } else if (status == HR_OK) {
        status = open_cuda(c, o, ordinal, error);
    }
    if (status != HR_OK)
        return status;
    int64_t extents = (int64_t)(c->dev->arena_bytes / HR_EXTENT_BYTES);
    if (!hr_extents_init(&c->extents, &c->alloc, extents))
        return hr_fail(error, HR_E_NO_MEMORY, "no memory for the table of %lld extents",
                       (long long)extents);
    if (hooks && hooks->device_opened)
        hooks->device_opened(hooks->user, c);
    return o->n_disks || o->disks ? hr_tiers_open(c, o, hooks, error) : HR_OK;
}

hr_status hr_context_open(const hr_options *options, const struct hr_hooks *hooks,
                          struct hr_error *error, hr_context **context)
{
    static const hr_options defaults = {.struct_size = sizeof(hr_options)};
    const hr_options *o = options ? options : &defaults;
    struct hr_alloc alloc;
    error->log = o->log;
    error->log_user = o->log_user;
    hr_status status = check_options(o, error);
    if (status != HR_OK)
        return status;
    hr_alloc_init(&alloc, o->allocator);
    hr_context *c = hr_alloc_zero(&alloc, sizeof(*c));
    if (!c)
        return hr_fail(error, HR_E_NO_MEMORY, "no memory for the context (%zu bytes)", sizeof(*c));
    c->alloc = alloc;
    c->error = (struct hr_error){.log = o->log, .log_user = o->log_user};
    c->wave_blocks = o->debug_wave_blocks;
    c->trace = o->trace;
    c->trace_user = o->trace_user;
    status = open_device(c, o, hooks, error);
    if (status != HR_OK) {
        hr_context_close(c);
        return status;
    }
    hr_log(&c->error, HR_LOG_INFO, "%s device: kernel %s, %d threads, K/V budget %llu bytes",
           c->dev->ops->name, c->kernels->name, c->dev->threads,
           (unsigned long long)c->dev->arena_bytes);
    *context = c;
    return HR_OK;
}

void hr_context_close(hr_context *c)
{
    struct hr_alloc alloc;
    if (c->tier) {
        hr_tier_close(c->tier);
        hr_alloc_put(&c->alloc, c->tier, sizeof(*c->tier));
    }
    hr_extents_close(&c->extents, &c->alloc);
#ifdef HR_HAVE_CUDA
    hr_cu_kernels_free(c->cuda);
#endif
    if (c->dev)
        c->dev->ops->close(c->dev);
    alloc = c->alloc;
    hr_alloc_put(&alloc, c, sizeof(*c));
}

void hr_context_fill_stats(const hr_context *c, hr_stats *stats)
{
    *stats = (hr_stats){
        .struct_size = stats->struct_size,
        .threads = c->dev->threads,
        .kv_bytes_total = hr_context_budget(c),
        .kv_bytes_used = c->kv_bytes_used,
        .kv_bytes_peak = c->kv_bytes_peak,
        .host_bytes_used = c->alloc.bytes_used,
        .host_allocs = c->alloc.calls,
        .steps_committed = c->steps_committed,
        .steps_aborted = c->steps_aborted,
        .tokens_appended = c->tokens_appended,
        .attend_ns = c->attend_ns,
        .waited_ns = c->waited_ns,
    };
    if (!c->tier)
        return;
    struct hr_mover_counts moved = hr_mover_counts(c->tier->mover);
    stats->disk_bytes_total = (uint64_t)c->tier->extents.count * HR_EXTENT_BYTES;
    stats->disk_read_bytes = moved.read_bytes;
    stats->disk_write_bytes = moved.write_bytes;
    for (const hr_cache *cache = c->first_cache; cache; cache = cache->next)
        for (int32_t p = 0; p < cache->n_tiered; p++) {
            const struct hr_lower *l = &cache->tiered[p].lower;
            stats->disk_bytes_used += l->slots.slots_used * hr_blocks_bytes(l->blocks);
            stats->disk_bytes_peak += l->slots_peak * hr_blocks_bytes(l->blocks);
        }
}

hr_status hr_context_device_status(hr_context *c)
{
    const char *text = c->dev->ops->error(c->dev);
    return text ? hr_fail(&c->error, HR_E_DEVICE, "%s", text) : HR_OK;
}
