#include "runtimes/cuda.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include <dlfcn.h>

#include <attnport/error.hpp>

#include "format/files.hpp"

namespace attnport::reader::cuda {

namespace {

#if defined(__APPLE__)
constexpr const char* library_name = "libcuda.dylib";
constexpr const char* management_name = "libnvidia-ml.dylib";
#else
constexpr const char* library_name = "libcuda.so.1";
constexpr const char* management_name = "libnvidia-ml.so.1";
#endif
constexpr int capability_major = 75;    // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int capability_minor = 76;    // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
constexpr unsigned non_blocking = 1;    // CU_STREAM_NON_BLOCKING: no hidden wait for the default stream
constexpr int memory_type = 2;          // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int device_ordinal = 9;       // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned device_memory = 2;   // CU_MEMORYTYPE_DEVICE
constexpr std::size_t uuid_bytes = 16;  // sizeof(CUuuid)

/// A function of a library by name, as the type of `function`.
template <class F> bool find(void* library, const char* name, F& function) {
    static_assert(std::is_pointer_v<F> && std::is_function_v<std::remove_pointer_t<F>>);
    function = reinterpret_cast<F>(dlsym(library, name));  // POSIX: dlsym gives functions so
    return function != nullptr;
}

}  // namespace

/// The functions of the driver's library. It stays loaded: the driver has threads and handlers of its own.
struct Device::Driver {
    Driver();

    int (*cuInit)(unsigned) = nullptr;
    int (*cuGetErrorName)(int, const char**) = nullptr;
    int (*cuDeviceGetCount)(int*) = nullptr;
    int (*cuDeviceGet)(int*, int) = nullptr;
    int (*cuDeviceGetName)(char*, int, int) = nullptr;
    int (*cuDeviceGetAttribute)(int*, int, int) = nullptr;
    int (*cuDeviceGetUuid)(unsigned char*, int) = nullptr;
    int (*cuDevicePrimaryCtxRetain)(void**, int) = nullptr;
    int (*cuDevicePrimaryCtxRelease)(int) = nullptr;
    int (*cuCtxGetCurrent)(void**) = nullptr;
    int (*cuCtxSetCurrent)(void*) = nullptr;
    int (*cuCtxSynchronize)() = nullptr;
    int (*cuStreamCreate)(void**, unsigned) = nullptr;
    int (*cuStreamDestroy)(void*) = nullptr;
    int (*cuStreamSynchronize)(void*) = nullptr;
    int (*cuMemAlloc)(Address*, std::size_t) = nullptr;
    int (*cuMemFree)(Address) = nullptr;
    int (*cuMemcpyHtoDAsync)(Address, const void*, std::size_t, void*) = nullptr;
    int (*cuMemcpyDtoHAsync)(void*, Address, std::size_t, void*) = nullptr;
    int (*cuPointerGetAttribute)(void*, int, Address) = nullptr;
};

Device::Driver::Driver() {
    void* const library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw RuntimeMissing(std::string("no NVIDIA driver: ") + library_name + " cannot be loaded.");
    }
    const auto need = [library](const char* name, auto& function) {
        if (find(library, name, function)) return;
        throw RuntimeMissing(std::string("no NVIDIA driver: ") + library_name + " has no " + name + ".");
    };
    need("cuInit", cuInit);
    need("cuGetErrorName", cuGetErrorName);
    need("cuDeviceGetCount", cuDeviceGetCount);
    need("cuDeviceGet", cuDeviceGet);
    need("cuDeviceGetName", cuDeviceGetName);
    need("cuDeviceGetAttribute", cuDeviceGetAttribute);
    need("cuDeviceGetUuid", cuDeviceGetUuid);
    need("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain);
    need("cuDevicePrimaryCtxRelease_v2", cuDevicePrimaryCtxRelease);
    need("cuCtxGetCurrent", cuCtxGetCurrent);
    need("cuCtxSetCurrent", cuCtxSetCurrent);
    need("cuCtxSynchronize", cuCtxSynchronize);
    need("cuStreamCreate", cuStreamCreate);
    need("cuStreamDestroy_v2", cuStreamDestroy);
    need("cuStreamSynchronize", cuStreamSynchronize);
    need("cuMemAlloc_v2", cuMemAlloc);
    need("cuMemFree_v2", cuMemFree);
    need("cuMemcpyHtoDAsync_v2", cuMemcpyHtoDAsync);
    need("cuMemcpyDtoHAsync_v2", cuMemcpyDtoHAsync);
    need("cuPointerGetAttribute", cuPointerGetAttribute);
}

std::string driver_release() {
    void* const library = dlopen(management_name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return "";
    int (*start)() = nullptr;
    int (*ask)(char*, unsigned) = nullptr;
    int (*stop)() = nullptr;
    if (!find(library, "nvmlInit_v2", start) || !find(library, "nvmlSystemGetDriverVersion", ask) ||
        !find(library, "nvmlShutdown", stop) || start() != 0) {
        return "";
    }
    std::array<char, 81> text{};  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80
    const int failed = ask(text.data(), static_cast<unsigned>(text.size() - 1));
    stop();
    return failed != 0 ? "" : std::string(text.data());
}

Device::Device() : driver_(std::make_shared<const Driver>()) {
    int count = 0;
    call("cuInit", driver_->cuInit(0));
    call("cuDeviceGetCount", driver_->cuDeviceGetCount(&count));
    if (count == 0) throw RuntimeMissing("the NVIDIA driver finds no GPU; CUDA_VISIBLE_DEVICES may hide it.");
    std::array<char, 257> text{};
    call("cuDeviceGet", driver_->cuDeviceGet(&device_, 0));
    call("cuDeviceGetName", driver_->cuDeviceGetName(text.data(), static_cast<int>(text.size() - 1), device_));
    name_ = text.data();
    sm_ = 10 * attribute(capability_major) + attribute(capability_minor);
    std::array<unsigned char, uuid_bytes> uuid{};
    call("cuDeviceGetUuid", driver_->cuDeviceGetUuid(uuid.data(), device_));
    uuid_ = hex({reinterpret_cast<const char*>(uuid.data()), uuid.size()});
}

Device::~Device() { close(); }

void Device::open() {
    call("cuDevicePrimaryCtxRetain", driver_->cuDevicePrimaryCtxRetain(&context_, device_));
    try {
        const Bound bound(*this);
        call("cuStreamCreate", driver_->cuStreamCreate(&stream_, non_blocking));
    } catch (...) {
        close();
        throw;
    }
}

void Device::close() noexcept {
    if (context_ == nullptr) return;
    // What the driver answers is of no use any more: nothing of this device is left to be used.
    if (stream_ != nullptr) {
        void* before = nullptr;
        driver_->cuCtxGetCurrent(&before);
        driver_->cuCtxSetCurrent(context_);
        driver_->cuStreamDestroy(stream_);
        driver_->cuCtxSetCurrent(before);
    }
    driver_->cuDevicePrimaryCtxRelease(device_);
    context_ = stream_ = nullptr;
}

void Device::upload(Address to, const void* from, std::size_t bytes) const {
    call("cuMemcpyHtoDAsync_v2", driver_->cuMemcpyHtoDAsync(to, from, bytes, stream_));
}

void Device::download(void* to, Address from, std::size_t bytes) const {
    call("cuMemcpyDtoHAsync_v2", driver_->cuMemcpyDtoHAsync(to, from, bytes, stream_));
}

void Device::synchronize() const { call("cuStreamSynchronize", driver_->cuStreamSynchronize(stream_)); }

void Device::synchronize_all() const { call("cuCtxSynchronize", driver_->cuCtxSynchronize()); }

bool Device::owns(Address address) const {
    unsigned kind = 0;
    int ordinal = -1;
    // The driver refuses an address that it never gave out.
    return driver_->cuPointerGetAttribute(&kind, memory_type, address) == 0 && kind == device_memory &&
           driver_->cuPointerGetAttribute(&ordinal, device_ordinal, address) == 0 && ordinal == device_;
}

int Device::attribute(int which) const {
    int value = 0;
    call("cuDeviceGetAttribute", driver_->cuDeviceGetAttribute(&value, which, device_));
    return value;
}

void Device::call(const char* function, int status) const {
    if (status == 0) return;
    const char* text = nullptr;
    const bool named = driver_->cuGetErrorName(status, &text) == 0 && text != nullptr;
    throw RuntimeMissing(std::string("the NVIDIA driver answers ") + function + " with " +
                         (named ? std::string(text) : "error " + std::to_string(status)) + ".");
}

Bound::Bound(const Device& device) : device_(device) {
    device.call("cuCtxGetCurrent", device.driver_->cuCtxGetCurrent(&before_));
    device.call("cuCtxSetCurrent", device.driver_->cuCtxSetCurrent(device.context_));
}

Bound::~Bound() { device_.driver_->cuCtxSetCurrent(before_); }

Memory::Memory(std::shared_ptr<const Device> device, std::size_t bytes)
    : device_(std::move(device)), bytes_(std::max<std::size_t>(bytes, 1)) {
    const Bound bound(*device_);
    device_->call("cuMemAlloc_v2", device_->driver_->cuMemAlloc(&address_, bytes_));
}

Memory::~Memory() {
    try {
        const Bound bound(*device_);
        device_->driver_->cuMemFree(address_);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a context that is lost has taken its memory with it
    }
}

Machine machine(const Device& device) { return {device.name(), device.uuid(), device.sm(), driver_release()}; }

}  // namespace attnport::reader::cuda

namespace attnport::reader {

Machine this_gpu() { return cuda::machine(cuda::Device()); }

}  // namespace attnport::reader
