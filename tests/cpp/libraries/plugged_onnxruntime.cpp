// ONNX Runtime's own library ($ATTNPORT_ONNXRUNTIME) with plug-ins that are pretended: every one can be registered, and
// offers one device of one provider. Who asks for the devices has to wait a while, and fails where a plug-in is
// registered meanwhile: ONNX Runtime's array would have changed under him.
#include <onnxruntime_c_api.h>

#if ORT_API_VERSION >= 23

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>

#include <dlfcn.h>

namespace {

struct Plugins {
    std::mutex lock;
    std::condition_variable changed;
    int registered = 0;
};
Plugins plugins;

const OrtApiBase* real() {
    void* handle = dlopen(std::getenv("ATTNPORT_ONNXRUNTIME"), RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<const OrtApiBase*(ORT_API_CALL*)()>(dlsym(handle, "OrtGetApiBase"))();
}

OrtStatus* ORT_API_CALL plug_in(OrtEnv*, const char*, const ORTCHAR_T*) noexcept {
    const std::lock_guard<std::mutex> held(plugins.lock);
    ++plugins.registered;
    plugins.changed.notify_all();
    return nullptr;
}

OrtStatus* ORT_API_CALL devices(const OrtEnv*, const OrtEpDevice* const** found, std::size_t* count) noexcept {
    static const int device = 0;  // only its address is used
    static const std::array all{reinterpret_cast<const OrtEpDevice*>(&device)};
    *found = all.data();
    *count = all.size();
    std::unique_lock<std::mutex> held(plugins.lock);
    const auto changed = [before = plugins.registered] { return plugins.registered != before; };
    if (!plugins.changed.wait_for(held, std::chrono::seconds(2), changed)) return nullptr;
    return real()->GetApi(ORT_API_VERSION)->CreateStatus(ORT_FAIL, "a plug-in was registered meanwhile");
}

const char* ORT_API_CALL provider_of(const OrtEpDevice*) { return "PretendedExecutionProvider"; }

const OrtHardwareDevice* ORT_API_CALL hardware_of(const OrtEpDevice* device) {
    return reinterpret_cast<const OrtHardwareDevice*>(device);
}

OrtHardwareDeviceType ORT_API_CALL type_of(const OrtHardwareDevice*) { return OrtHardwareDeviceType_CPU; }

std::uint32_t ORT_API_CALL vendor_of(const OrtHardwareDevice*) { return 0; }

OrtStatus* ORT_API_CALL append(OrtSessionOptions*, OrtEnv*, const OrtEpDevice* const*, std::size_t, const char* const*,
                               const char* const*, std::size_t) noexcept {
    return nullptr;
}

const OrtApi* ORT_API_CALL interface_of(std::uint32_t version) noexcept {
    static const OrtApi made = [version] {
        OrtApi found = *real()->GetApi(version);
        found.RegisterExecutionProviderLibrary = plug_in;
        found.GetEpDevices = devices;
        found.EpDevice_EpName = provider_of;
        found.EpDevice_Device = hardware_of;
        found.HardwareDevice_Type = type_of;
        found.HardwareDevice_VendorId = vendor_of;
        found.SessionOptionsAppendExecutionProvider_V2 = append;
        return found;
    }();
    return &made;
}

const char* ORT_API_CALL version() noexcept { return real()->GetVersionString(); }

}  // namespace

extern "C" const OrtApiBase* OrtGetApiBase() noexcept {
    static const OrtApiBase base{interface_of, version};
    return &base;
}

#endif
