/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one layer: append, and attend wave by wave, newest blocks first. */
#ifndef HR_EXEC_H
#define HR_EXEC_H

#include "src/step.h"

/* How a kind of device does it. Calls enqueue; hr_dev_ops.error tells what went wrong. */
struct hr_exec_ops {
    /* Brings the lists of a step that was just opened to where kernels read them. False: no
     * memory. */
    bool (*begin)(hr_step *step);
    hr_status (*append)(hr_step *step, int32_t layer, const struct hr_rows *k,
                        const struct hr_rows *v);
    /* `attend` has the request's part; lists, blocks and workspace are added here. */
    hr_status (*attend)(hr_step *step, int32_t layer, struct hr_attend *attend);
    /* Whether what was enqueued last is done. */
    enum hr_dev_wait (*wait)(hr_step *step, int64_t deadline_ns);
    /* Gives back what begin took, before the step goes. */
    void (*free)(hr_step *step);
};

extern const struct hr_exec_ops hr_exec_host;
#ifdef HR_HAVE_CUDA
extern const struct hr_exec_ops hr_exec_cuda;
#endif

#endif
