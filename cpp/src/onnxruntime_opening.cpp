// A form opened by ONNX Runtime, on an execution provider that was asked for and no other.
#include "opening.hpp"

#include <attnport/error.hpp>

#if !defined(ATTNPORT_WITH_ONNXRUNTIME)

namespace attnport::reader {

std::unique_ptr<Session> open_onnxruntime(const std::filesystem::path&, const Manifest&, const Form&, const Options&) {
    throw RuntimeMissing("this reader was built without ONNX Runtime's headers; set ONNXRUNTIME_INCLUDE_DIR in CMake "
                         "to the folder of onnxruntime_c_api.h.");
}

}  // namespace attnport::reader

#else

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <utility>

#include "onnxruntime_library.hpp"
#include "onnxruntime_session.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

constexpr const char* cpu_provider = "CPUExecutionProvider";
constexpr const char* cuda_provider = "CUDAExecutionProvider";
constexpr const char* tensorrt_provider = "TensorrtExecutionProvider";
constexpr const char* rtx_provider = "NvTensorRTRTXExecutionProvider";

/// Opens the file with one provider after the other.
class Starting {
public:
    Starting(OnnxRuntime& library, const std::filesystem::path& path, const Manifest& manifest, const Form& form,
             const Options& options)
        : library_(library), api_(library.api()), path_(path), manifest_(manifest), form_(form), options_(options),
          built_in_(library.providers()) {}

    /// Throws RuntimeMissing where the provider does not start, and Error where the file is refused.
    std::unique_ptr<Session> with(const std::string& called) {
        const auto settings = library_.made<OrtSessionOptions>(
            api_.ReleaseSessionOptions, [&](OrtSessionOptions** made) { return api_.CreateSessionOptions(made); });
        library_.check(api_.SetSessionLogSeverityLevel(settings.get(), ORT_LOGGING_LEVEL_FATAL));
        // Not its own format, which it knows by a name or a key like this one, and which nothing here has looked into.
        library_.check(api_.AddSessionConfigEntry(settings.get(), "session.load_model_format", "ONNX"));
        // Its kernel on a CPU takes five times as long as the two that it replaces.
        constexpr const char* slower = "SkipLayerNormFusion";
        if (called == cpu_provider) {
            library_.check(
                api_.AddSessionConfigEntry(settings.get(), "optimization.disable_specified_optimizers", slower));
        }
        if (options_.threads != 0) library_.check(api_.SetIntraOpNumThreads(settings.get(), options_.threads));
        Chosen chosen{called, Place::Cpu};
        try {
            chosen.place = append(called, settings.get());
        } catch (const OrtFailure& err) {
            throw does_not_start(called, err);
        }
        // Other providers move weights to their device, and not all of them were tried with such.
        const bool reads = called == cpu_provider && !form_.external.empty() && !may_map(manifest_, form_);
        const std::vector<std::string> weights = reads ? give_weights(settings.get()) : std::vector<std::string>();
        return opened(settings.get(), std::move(chosen));
    }

private:
    std::unique_ptr<Session> opened(const OrtSessionOptions* settings, Chosen chosen) {
        try {
            auto session = library_.made<OrtSession>(api_.ReleaseSession, [&](OrtSession** made) {
                return api_.CreateSession(library_.env(), path_.c_str(), settings, made);
            });
            return std::make_unique<OnnxRuntimeSession>(library_, std::move(session), manifest_.io, std::move(chosen));
        } catch (const OrtFailure& err) {
            if (chosen.provider != cpu_provider && !blames_the_file(err.code())) {
                throw does_not_start(chosen.provider, err);
            }
            throw Error(path_.string() + " cannot be opened: " + err.what());
        }
    }

    /// The bytes of the weights files, which the options point to until the session is there.
    std::vector<std::string> give_weights(OrtSessionOptions* settings) {
        std::vector<std::string> found;
        std::vector<const char*> names;
        std::vector<char*> data;
        std::vector<std::size_t> sizes;
        for (const std::string& name : form_.external) found.push_back(read_regular(path_.parent_path() / name));
        for (std::size_t index = 0; index < found.size(); ++index) {
            names.push_back(form_.external[index].c_str());
            data.push_back(found[index].data());
            sizes.push_back(found[index].size());
        }
        library_.check(api_.AddExternalInitializersFromFilesInMemory(settings, names.data(), data.data(), sizes.data(),
                                                                     names.size()));
        return found;
    }

    /// Adds the provider to the options and says where it computes.
    Place append(const std::string& called, OrtSessionOptions* settings) {
        if (append_plugin(called, settings)) return plugin_place_;
        static constexpr std::array known{cpu_provider, cuda_provider, tensorrt_provider, rtx_provider};
        const bool is_known = std::find(known.begin(), known.end(), called) != known.end();
        const bool built_in = std::find(built_in_.begin(), built_in_.end(), called) != built_in_.end();
        if (!is_known && !options_.providers.empty()) {
            throw Error("provider " + reader::quoted(called) + " is not one of " +
                        joined({known.begin(), known.end()}) + ", or of the plug-ins.");
        }
        if (!built_in) throw RuntimeMissing("this onnxruntime was built without " + called + ".");
        if (!is_known) throw RuntimeMissing("this reader has no way to start " + called + ".");
        if (called == cpu_provider) return Place::Cpu;  // always there, behind all others
        if (called == cuda_provider) append_cuda(settings);
        if (called == tensorrt_provider) append_tensorrt(settings);
        // The short name is the one that every release takes here.
        if (called == rtx_provider) {
            library_.check(api_.SessionOptionsAppendExecutionProvider(settings, "NvTensorRtRtx", nullptr, nullptr, 0));
        }
        return Place::Cuda;
    }

    void append_cuda(OrtSessionOptions* settings) {
        const auto made = library_.made<OrtCUDAProviderOptionsV2>(
            api_.ReleaseCUDAProviderOptions,
            [&](OrtCUDAProviderOptionsV2** found) { return api_.CreateCUDAProviderOptions(found); });
        // TF32 keeps 10 of float32's 23 bits of mantissa: a precision of its own, and never meant by fp32.
        const std::array<const char*, 1> keys{"use_tf32"};
        const std::array<const char*, 1> values{"0"};
        library_.check(api_.UpdateCUDAProviderOptions(made.get(), keys.data(), values.data(), keys.size()));
        library_.check(api_.SessionOptionsAppendExecutionProvider_CUDA_V2(settings, made.get()));
    }

    void append_tensorrt(OrtSessionOptions* settings) {
        const auto made = library_.made<OrtTensorRTProviderOptionsV2>(
            api_.ReleaseTensorRTProviderOptions,
            [&](OrtTensorRTProviderOptionsV2** found) { return api_.CreateTensorRTProviderOptions(found); });
        library_.check(api_.SessionOptionsAppendExecutionProvider_TensorRT_V2(settings, made.get()));
    }

    /// Adds a provider of a plug-in on the first device that it offers; false where no plug-in has it.
    bool append_plugin([[maybe_unused]] const std::string& called, [[maybe_unused]] OrtSessionOptions* settings) {
        // The CPU's own is always there: a plug-in that cannot be loaded is nothing to it.
        if (options_.plugins.empty() || called == cpu_provider) return false;
        const std::unique_lock<std::mutex> held = library_.register_plugins(options_.plugins);
#if ORT_API_VERSION >= 23
        const OrtEpDevice* const* devices = nullptr;
        std::size_t count = 0;
        library_.check(api_.GetEpDevices(library_.env(), &devices, &count));
        for (std::size_t index = 0; index < count; ++index) {
            if (called != api_.EpDevice_EpName(devices[index])) continue;
            const OrtHardwareDevice* hardware = api_.EpDevice_Device(devices[index]);
            constexpr std::uint32_t nvidia = 0x10DE;  // PCI's number of the vendor
            const bool cuda = api_.HardwareDevice_Type(hardware) == OrtHardwareDeviceType_GPU &&
                              api_.HardwareDevice_VendorId(hardware) == nvidia;
            plugin_place_ = cuda ? Place::Cuda : Place::Cpu;
            library_.check(api_.SessionOptionsAppendExecutionProvider_V2(settings, library_.env(), &devices[index], 1,
                                                                         nullptr, nullptr, 0));
            return true;
        }
#endif
        return false;
    }

    static RuntimeMissing does_not_start(const std::string& called, const OrtFailure& err) {
        return RuntimeMissing(called + " does not start here: " + err.what());
    }

    /// Whether a failure says that the file is at fault, whatever it is opened with.
    static bool blames_the_file(OrtErrorCode code) {
        return code == ORT_NO_SUCHFILE || code == ORT_NO_MODEL || code == ORT_INVALID_PROTOBUF ||
               code == ORT_INVALID_GRAPH;
    }

    OnnxRuntime& library_;
    const OrtApi& api_;
    const std::filesystem::path& path_;
    const Manifest& manifest_;
    const Form& form_;
    const Options& options_;
    std::vector<std::string> built_in_;
    Place plugin_place_ = Place::Cpu;
};

}  // namespace

std::unique_ptr<Session> open_onnxruntime(const std::filesystem::path& path, const Manifest& manifest, const Form& form,
                                          const Options& options) {
    OnnxRuntime& library = load_onnxruntime(options.onnxruntime, form.requires_);
    const auto asked = options.providers.empty() ? std::vector<std::string>{form.provider.value_or(cpu_provider)}
                                                 : options.providers;
    std::vector<std::string> refusals;
    try {
        Starting starting(library, path, manifest, form, options);
        for (const auto& called : asked) {
            try {
                return starting.with(called);
            } catch (const RuntimeMissing& err) {
                if (asked.size() == 1) throw;
                refusals.push_back(called + ": " + err.what());
            }
        }
    } catch (const OrtFailure& err) {
        throw Error(std::string("onnxruntime failed: ") + err.what());
    }
    throw RuntimeMissing(joined(refusals, " "));
}

}  // namespace attnport::reader

#endif
