// A CUDA driver, and NVML, of devices that are not there: memory of the host in the place of a GPU's. It ends the
// process for what a driver's user must not do: memory that it never gave out or that is too small, a call without the
// context, a device that is given back with memory or streams left.
//
//     PRETENDED_DEVICES  how many there are (1); PRETENDED_SM  their compute capability (89)
//     PRETENDED_FAIL     a function that answers CUDA_ERROR_OUT_OF_MEMORY, see pretended.hpp; PRETENDED_LOG  of calls
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "pretended.hpp"

namespace {

using Address = std::uint64_t;

constexpr int out_of_memory = 2;
constexpr int invalid_value = 1;
constexpr int not_initialized = 3;
constexpr std::size_t alignment = 256;

struct State {
    std::mutex mutex;
    std::map<std::string, int> calls;
    std::map<Address, std::size_t> memory;
    std::set<void*> streams;
    int retained = 0;
    bool ready = false;
};

State& state() {
    static State* const made = new State;  // outlives every static object of the program, which may still call
    return *made;
}

int context_place = 0;
thread_local void* current = nullptr;

/// The status that a call starts with.
int begun(const char* function) {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    pretended::note(function);
    if (pretended::fails(function, s.calls[function])) return out_of_memory;
    return s.ready || std::strcmp(function, "cuInit") == 0 ? 0 : not_initialized;
}

int with_context(const char* function) {
    if (current != &context_place) pretended::refuse(std::string(function) + " without the device's context");
    return begun(function);
}

/// Ends the process unless the range is one that was given out.
void check_range(const char* function, Address address, std::size_t bytes) {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    const auto found = s.memory.find(address);
    if (found == s.memory.end()) pretended::refuse(std::string(function) + " of memory that was never given out");
    if (bytes > found->second) pretended::refuse(std::string(function) + " beyond the end of its memory");
}

void* pointer(Address address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

}  // namespace

extern "C" {

int cuInit(unsigned) {
    const int status = begun("cuInit");
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().ready = status == 0;
    return status;
}

int cuGetErrorName(int status, const char** text) {
    *text = status == out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY" : nullptr;
    return *text != nullptr ? 0 : invalid_value;
}

int cuDeviceGetCount(int* count) {
    *count = std::atoi(pretended::setting("PRETENDED_DEVICES", "1").c_str());
    return begun("cuDeviceGetCount");
}

int cuDeviceGet(int* device, int index) {
    *device = index;
    return begun("cuDeviceGet");
}

int cuDeviceGetName(char* text, int size, int) {
    std::strncpy(text, "Pretended GPU", static_cast<std::size_t>(size));
    return begun("cuDeviceGetName");
}

int cuDeviceGetAttribute(int* value, int which, int) {
    const int sm = std::atoi(pretended::setting("PRETENDED_SM", "89").c_str());
    *value = which == 75 ? sm / 10 : which == 76 ? sm % 10 : -1;
    return begun("cuDeviceGetAttribute");
}

int cuDeviceGetUuid(unsigned char* uuid, int) {
    std::memset(uuid, 0xAB, 16);
    return begun("cuDeviceGetUuid");
}

int cuDevicePrimaryCtxRetain(void** context, int) {
    if (const int status = begun("cuDevicePrimaryCtxRetain"); status != 0) return status;
    ++state().retained;
    *context = &context_place;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int) {
    const int status = begun("cuDevicePrimaryCtxRelease_v2");
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (s.retained == 0) pretended::refuse("a context is released once too often");
    if (--s.retained == 0 && !s.memory.empty()) pretended::refuse("the device is given back with memory left");
    if (s.retained == 0 && !s.streams.empty()) pretended::refuse("the device is given back with streams left");
    return status;
}

int cuCtxGetCurrent(void** context) {
    *context = current;
    return begun("cuCtxGetCurrent");
}

int cuCtxSetCurrent(void* context) {
    if (const int status = begun("cuCtxSetCurrent"); status != 0) return status;
    current = context;
    return 0;
}

int cuCtxSynchronize() { return with_context("cuCtxSynchronize"); }

int cuStreamCreate(void** stream, unsigned) {
    if (const int status = with_context("cuStreamCreate"); status != 0) return status;
    const std::lock_guard<std::mutex> lock(state().mutex);
    *stream = std::malloc(1);
    state().streams.insert(*stream);
    return 0;
}

int cuStreamDestroy_v2(void* stream) {
    const int status = with_context("cuStreamDestroy_v2");
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (state().streams.erase(stream) == 0) pretended::refuse("a stream is destroyed that is none");
    std::free(stream);
    return status;
}

int cuStreamSynchronize(void*) { return with_context("cuStreamSynchronize"); }

int cuMemAlloc_v2(Address* address, std::size_t bytes) {
    if (const int status = with_context("cuMemAlloc_v2"); status != 0) return status;
    void* const made = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (made == nullptr) return out_of_memory;
    const std::lock_guard<std::mutex> lock(state().mutex);
    *address = reinterpret_cast<std::uintptr_t>(made);
    state().memory[*address] = bytes;
    return 0;
}

int cuMemFree_v2(Address address) {
    check_range("cuMemFree_v2", address, 0);
    const int status = with_context("cuMemFree_v2");
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().memory.erase(address);
    std::free(pointer(address));
    return status;
}

int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void*) {
    check_range("cuMemcpyHtoDAsync_v2", to, bytes);
    if (const int status = with_context("cuMemcpyHtoDAsync_v2"); status != 0) return status;
    if (bytes > 0) std::memcpy(pointer(to), from, bytes);
    return 0;
}

int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void*) {
    check_range("cuMemcpyDtoHAsync_v2", from, bytes);
    if (const int status = with_context("cuMemcpyDtoHAsync_v2"); status != 0) return status;
    if (bytes > 0) std::memcpy(to, pointer(from), bytes);
    return 0;
}

int cuPointerGetAttribute(void* value, int which, Address address) {
    if (const int status = begun("cuPointerGetAttribute"); status != 0) return status;
    const std::lock_guard<std::mutex> lock(state().mutex);
    const auto behind = state().memory.upper_bound(address);
    if (behind == state().memory.begin()) return invalid_value;
    const auto found = std::prev(behind);
    if (address >= found->first + found->second) return invalid_value;
    if (which == 2) *static_cast<unsigned*>(value) = 2;  // memory on a device
    if (which == 9) *static_cast<int*>(value) = 0;       // the first device
    return 0;
}

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
    std::strncpy(text, pretended::setting("PRETENDED_DRIVER", "580.1").c_str(), size);
    return 0;
}

}  // extern "C"
