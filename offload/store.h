/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier's files: one in each directory, preallocated, without a name once they are open;
 * together a row of extents that alternate between the directories. */
#ifndef HR_OFFLOAD_STORE_H
#define HR_OFFLOAD_STORE_H

#include "offload/extent.h"
#include "offload/io.h"
#include "src/base/error.h"

enum { HR_STORE_DIRS_MAX = 64, HR_STORE_WHY_BYTES = 192 };
/* 128 TiB, of all directories. Tables have an entry for each block. */
#define HR_STORE_BYTES_MAX (1ull << 47)

struct hr_store_dir {
    const char *path;
    uint64_t bytes; /* at least an extent; rounded down to extents */
};

enum hr_store_cache {
    HR_STORE_DIRECT,   /* O_DIRECT: past the page cache */
    HR_STORE_BUFFERED, /* the file system refused O_DIRECT */
};

struct hr_store_file {
    const char *path; /* of the directory, copied */
    int fd;
    enum hr_store_cache cache;
    uint32_t memory_align, offset_align; /* of direct I/O, from statx; 1 when buffered */
    int64_t extents;
    uint64_t file_system;         /* its device number: files of one share its room */
    bool in_memory;               /* it is tmpfs: no disk */
    char why[HR_STORE_WHY_BYTES]; /* buffered: the call that refused O_DIRECT, or "as asked" */
};

struct hr_store {
    struct hr_alloc *alloc;
    const struct hr_io_calls *calls;
    struct hr_store_file *files;
    int32_t n_files;
    int64_t extents; /* of all files */
};

struct hr_store_options {
    struct hr_alloc *alloc;
    const struct hr_io_calls *calls; /* NULL: the system's */
    const struct hr_store_dir *dirs;
    int32_t n_dirs;
    bool buffered; /* do not try O_DIRECT */
};

/* Errors that need no file system: HR_E_INVALID. */
hr_status hr_store_check(const struct hr_store_dir *dirs, int32_t n_dirs, struct hr_error *error);
/* Makes the files: checks each directory and its free space first, probes O_DIRECT with the
 * alignment that statx names, preallocates. On an error nothing is left behind, and the sentence
 * has the directory, the call, its errno or the bytes. Errors: HR_E_INVALID, HR_E_SYSTEM,
 * HR_E_NO_MEMORY. */
hr_status hr_store_open(struct hr_store *store, const struct hr_store_options *options,
                        struct hr_error *error);
void hr_store_close(struct hr_store *store);

/* Where an extent lies: the first byte of HR_EXTENT_BYTES. Its neighbours may lie elsewhere. fd
 * -1: there is no such extent. */
struct hr_store_place {
    int fd;
    uint64_t offset;
};
struct hr_store_place hr_store_place(const struct hr_store *store, int64_t extent);

/* One line: each directory with its bytes and how it is read; of buffered files, that what was just
 * written comes back from the page cache. Returns as snprintf. */
int hr_store_text(const struct hr_store *store, char *buffer, size_t size);

#endif
