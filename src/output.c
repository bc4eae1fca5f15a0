/* SPDX-License-Identifier: Apache-2.0 */
#include "src/output.h"

void hr_output_fold(hr_step *step, const struct hr_plan *plan, const struct hr_attend *attend)
{
    struct hr_dev *dev = step->cache->context->dev;
    if (plan->n_folds > 0)
        dev->ops->launch(dev, step->cache->kernels->fold, attend, plan->n_folds);
}
