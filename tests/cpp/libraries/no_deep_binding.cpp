// Takes RTLD_DEEPBIND from every dlopen, to be preloaded where a sanitizer looks: oneTBB, which comes with OpenVINO,
// binds a library of its own so, and AddressSanitizer and ThreadSanitizer end a process that does
// (https://github.com/google/sanitizers/issues/611).
#include <dlfcn.h>

extern "C" void* dlopen(const char* path, int flags) {
    using Open = void* (*)(const char*, int);
    static const auto next = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "dlopen"));
    return next(path, flags & ~RTLD_DEEPBIND);
}
