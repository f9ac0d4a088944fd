// Marks a function of the C interface of a library, the only ones that it exports.
#pragma once

#ifdef _WIN32
#define TIGHTBEAM_EXPORT extern "C" __declspec(dllexport)
#else
#define TIGHTBEAM_EXPORT extern "C" __attribute__((visibility("default")))
#endif
