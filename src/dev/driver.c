/* SPDX-License-Identifier: Apache-2.0 */
#include "src/dev/driver.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "src/dev/dev.h"

/* Where a function's address goes, and under which name it is found. */
struct symbol {
    size_t offset;
    const char *name;
    bool optional;
};

#define TEXT(name) #name
#define NEEDED(name) {offsetof(struct hr_cu_driver, name), TEXT(name), false},
#define WANTED(name) {offsetof(struct hr_cu_driver, name), TEXT(name), true},

static const struct symbol symbols[] = {HR_CU_FUNCTIONS(NEEDED) HR_CU_OPTIONAL(WANTED)};

enum { N_SYMBOLS = sizeof symbols / sizeof symbols[0] };

static const char *find_all(struct hr_cu_driver *cu, void *library)
{
    for (int i = 0; i < N_SYMBOLS; i++) {
        void *function = dlsym(library, symbols[i].name);
        if (!function && !symbols[i].optional)
            return symbols[i].name;
        memcpy((char *)cu + symbols[i].offset, &function, sizeof(function));
    }
    return NULL;
}

/* The library stays in the process: it has threads of its own, and other users. */
bool hr_cu_driver_load(struct hr_cu_driver *cu, const char *library, char *why)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        const char *reason = dlerror();
        snprintf(why, HR_DEV_TEXT_BYTES, "no CUDA driver: %s", reason ? reason : library);
        return false;
    }
    const char *missing = find_all(cu, handle);
    dlclose(handle);
    if (missing)
        snprintf(why, HR_DEV_TEXT_BYTES,
                 "the CUDA driver has no %s: it is older than CUDA %d.%d, which this build needs",
                 missing, HR_CU_DRIVER_NEEDED / 1000, HR_CU_DRIVER_NEEDED % 1000 / 10);
    return !missing;
}

void hr_cu_driver_say(const struct hr_cu_driver *cu, CUresult result, const char *call, char *text)
{
    const char *name = NULL, *meaning = NULL;
    if (cu->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "CUDA error";
    if (cu->cuGetErrorString(result, &meaning) != CUDA_SUCCESS || !meaning)
        meaning = "unknown";
    snprintf(text, HR_DEV_TEXT_BYTES, "%s: %s (%d): %s", call, name, (int)result, meaning);
}

bool hr_cu_driver_init(const struct hr_cu_driver *cu, int *version, int *devices, char *why)
{
    const char *call = "cuDriverGetVersion";
    CUresult result = cu->cuDriverGetVersion(version);
    if (result == CUDA_SUCCESS && *version < HR_CU_DRIVER_NEEDED) {
        snprintf(why, HR_DEV_TEXT_BYTES,
                 "the CUDA driver is one of CUDA %d.%d; this build needs %d.%d or later",
                 *version / 1000, *version % 1000 / 10, HR_CU_DRIVER_NEEDED / 1000,
                 HR_CU_DRIVER_NEEDED % 1000 / 10);
        return false;
    }
    if (result == CUDA_SUCCESS) {
        call = "cuInit";
        result = cu->cuInit(0);
    }
    if (result == CUDA_SUCCESS) {
        call = "cuDeviceGetCount";
        result = cu->cuDeviceGetCount(devices);
    }
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && *devices == 0)) {
        snprintf(why, HR_DEV_TEXT_BYTES, "the CUDA driver (CUDA %d.%d) sees no GPU",
                 *version / 1000, *version % 1000 / 10);
        return false;
    }
    if (result != CUDA_SUCCESS)
        hr_cu_driver_say(cu, result, call, why);
    return result == CUDA_SUCCESS;
}
