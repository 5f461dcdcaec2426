// A TensorRT engine on a device: profiles, device memory, one execution context a profile. Both flavours share one API.
// Only for files that are compiled with TensorRT's headers.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <NvInferRuntime.h>

#include "cache.hpp"
#include "cuda.hpp"
#include "engine_library.hpp"
#include "session.hpp"
#include "words.hpp"

namespace attnport::reader {

/// Keeps TensorRT's last error for our messages and prints nothing.
class EngineLog final : public nvinfer1::ILogger {
public:
    void log(Severity severity, const char* message) noexcept override {
        if (severity > Severity::kERROR) return;
        try {
            const std::lock_guard<std::mutex> lock(mutex_);
            last_ = message;
        } catch (...) {  // NOLINT(bugprone-empty-catch): without memory for its reason, the error is told without one
        }
    }
    [[nodiscard]] std::string last() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return last_.empty() ? "it gives no reason." : escaped(last_);
    }

private:
    mutable std::mutex mutex_;
    std::string last_;
};

/// A deserialised engine. Calls from several threads take turns.
class EngineSession final : public Session {
public:
    /// Whoever opens an engine has compared digest, version, header and device before; `device` is open. The names
    /// of the outputs are in the order of the contract; `where` is what messages call the engine.
    EngineSession(std::shared_ptr<const cuda::Device> device, const EngineLibrary& library, std::string_view data,
                  const std::string& where, std::vector<std::string> output_names, std::optional<RuntimeCache> cache);
    EngineSession(const EngineSession&) = delete;
    EngineSession& operator=(const EngineSession&) = delete;
    ~EngineSession() override;

    std::vector<Tensor> run(const std::vector<Input>& given) override { return locked(given, Place::Cpu); }

    /// Inputs on the GPU are read where they are: work on them in the same CUDA context is waited for. Outputs have
    /// memory of their own, and keep the device.
    std::vector<Tensor> run_device(const std::vector<Input>& given) override { return locked(given, Place::Cuda); }

private:
    /// TensorRT's objects, in its order of destruction: contexts before their engine, the engine before its runtime.
    struct Objects {
        std::unique_ptr<nvinfer1::IRuntime> runtime;
        std::unique_ptr<nvinfer1::ICudaEngine> engine;
#ifdef TRT_MAJOR_RTX
        std::unique_ptr<nvinfer1::IRuntimeConfig> config;
        std::unique_ptr<nvinfer1::IRuntimeCache> compiled;
#endif
        std::map<std::size_t, std::unique_ptr<nvinfer1::IExecutionContext>> contexts;
        std::map<std::string, std::unique_ptr<cuda::Memory>> buffers;

        void clear() noexcept;
    };

    void load(const EngineLibrary& library, std::string_view data, const std::string& where);
    void read_ports();
    void configure();
    void keep();
    void settle() const noexcept;
    std::vector<Tensor> locked(const std::vector<Input>& given, Place wanted);
    std::vector<Tensor> computed(nvinfer1::IExecutionContext& context, const std::vector<const Input*>& given,
                                 Place wanted);
    void bind_input(nvinfer1::IExecutionContext& context, const Port& port, const Input& input);
    [[nodiscard]] cuda::Address checked_address(const Port& port, const Input& input) const;
    [[nodiscard]] Tensor bind_output(nvinfer1::IExecutionContext& context, const std::string& called, Place wanted);
    std::pair<nvinfer1::IExecutionContext*, bool> context_of(std::size_t profile);
    cuda::Address buffer(const std::string& called, std::size_t bytes);
    [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(device_->stream()); }

    std::shared_ptr<const cuda::Device> device_;  // the last to go
    EngineLog log_;
    std::optional<RuntimeCache> cache_;
    std::vector<std::string> output_names_;
    Objects objects_;
    std::mutex mutex_;
};

}  // namespace attnport::reader
