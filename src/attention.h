/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ATTENTION_H
#define HR_ATTENTION_H

#include "src/context.h"

/* Stateless attention through a cache, sequences and a step made for this call. */
hr_status hr_attention_run(hr_context *context, const hr_attention_args *args);

#endif
