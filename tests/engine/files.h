/* SPDX-License-Identifier: Apache-2.0 */
/* The system's file calls, counted; those with certain numbers fail. */
#ifndef HR_TESTS_FILES_H
#define HR_TESTS_FILES_H

#include <pthread.h>

#include "offload/io.h"

enum file_call { FILE_READ, FILE_WRITE, FILE_OPEN, FILE_CLOSE, FILE_ALLOCATE, FILE_UNLINK };

struct files {
    unsigned counted; /* bits: which calls; 0: all */
    int64_t calls;    /* so far */
    int64_t fail_at;  /* the call with this number, and `more` behind it */
    int64_t more;
    int error;     /* 0: a half of the bytes is moved; a call that moves none fails with EIO */
    int64_t fell;  /* times that one failed */
    int64_t open;  /* files */
    bool buffered; /* O_DIRECT is refused */
    bool sparse;   /* files are as long as asked, and hold nothing */
    pthread_mutex_t mutex;
};

/* None fails. */
#define FILES_WELL                                                                                 \
    {                                                                                              \
        .fail_at = INT64_MAX, .mutex = PTHREAD_MUTEX_INITIALIZER                                   \
    }

/* While calls may be under way: how many have failed, and that none will from now on. */
int64_t files_fell(struct files *files);
void files_heal(struct files *files);

/* `files` must outlive them. */
struct hr_io_calls files_calls(struct files *files);

#endif
