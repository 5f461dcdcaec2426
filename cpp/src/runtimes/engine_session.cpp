// A TensorRT engine on a device: profiles, device memory, one execution context a profile. Both flavours share one API.
// It is opened by the TensorRT that this file was compiled with the headers of: see EngineLibrary::require.
#include <attnport/error.hpp>

#include "runtimes/cache.hpp"
#include "runtimes/engine.hpp"

#ifndef ATTNPORT_WITH_TENSORRT

namespace attnport::reader {

std::unique_ptr<Session> open_engine(const std::filesystem::path& path, const Manifest& manifest,
                                     const std::string& name, const std::optional<CacheFolder>& /*cache*/) {
    check_engine_file(path, manifest.form(name));
    throw RuntimeMissing(manifest.form(name).runtime +
                         ": this library was built without TensorRT's headers; name their folders to CMake in "
                         "TENSORRT_INCLUDE_DIR and CUDA_INCLUDE_DIR.");
}

}  // namespace attnport::reader

#else

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <NvInferRuntime.h>

#include "format/files.hpp"
#include "format/text.hpp"
#include "run/arrays.hpp"
#include "runtimes/cuda.hpp"

namespace attnport::reader {
namespace {

/// What TensorRT asks of every address of a tensor.
constexpr cuda::Address alignment_bytes = 256;

/// The name of the buffer that the contexts share, which is no tensor's.
constexpr const char* scratch = "";

constexpr auto user_managed = nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED;

/// nvinfer1::DataType in the words of a bundle, or TensorRT's own for what no bundle has.
std::string dtype_name(nvinfer1::DataType dtype) {
    constexpr std::array<std::string_view, 12> names = {"float32", "float16", "INT8",  "int32", "bool", "UINT8",
                                                        "FP8",     "bfloat16", "int64", "INT4",  "FP4",  "E8M0"};
    const auto index = static_cast<std::size_t>(dtype);
    return index < names.size() ? std::string(names[index]) : "dtype " + std::to_string(index);
}

/// Of a tensor that is made here: check_ports has seen that there is no other.
DType dtype_of(const std::string& name) {
    for (const DType dtype :
         {DType::Float32, DType::Float16, DType::Int32, DType::Int64, DType::Bool, DType::BFloat16}) {
        if (attnport::name(dtype) == name) return dtype;
    }
    throw Error("TensorRT gives a tensor of " + name + ", which no bundle has.");
}

Shape shape_of(const nvinfer1::Dims& dims) {
    const auto rank = static_cast<std::size_t>(std::clamp<std::int64_t>(dims.nbDims, 0, nvinfer1::Dims::MAX_DIMS));
    return {std::begin(dims.d), std::next(std::begin(dims.d), static_cast<std::ptrdiff_t>(rank))};
}

/// An address on a device as TensorRT's interface takes it.
void* pointer(cuda::Address address) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));  // NOLINT(performance-no-int-to-ptr)
}

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

    std::vector<Tensor> run(const std::vector<Input>& given) override {
        return run_device(given, std::vector<bool>(output_names_.size()));
    }

    /// Inputs on the GPU are read where they are: work on them in the same CUDA context is waited for. Outputs there have
    /// memory of their own, and keep the device.
    std::vector<Tensor> run_device(const std::vector<Input>& given, const std::vector<bool>& stays) override;

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
    std::vector<Tensor> computed(nvinfer1::IExecutionContext& context, const std::vector<const Input*>& given,
                                 const std::vector<bool>& stays);
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

void EngineSession::Objects::clear() noexcept {
    contexts.clear();
    buffers.clear();
#ifdef TRT_MAJOR_RTX
    compiled.reset();
    config.reset();
#endif
    engine.reset();
    runtime.reset();
}

EngineSession::EngineSession(std::shared_ptr<const cuda::Device> device, const EngineLibrary& library,
                             std::string_view data, const std::string& where, std::vector<std::string> output_names,
                             std::optional<RuntimeCache> cache)
    : device_(std::move(device)), cache_(std::move(cache)), output_names_(std::move(output_names)) {
    const cuda::Bound bound(*device_);
    try {
        load(library, data, where);
    } catch (...) {
        objects_.clear();  // while the context is current
        throw;
    }
}

EngineSession::~EngineSession() {
    try {
        const cuda::Bound bound(*device_);
        settle();
        keep();
        objects_.clear();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nobody is there to be told of a lost device
    }
}

void EngineSession::load(const EngineLibrary& library, std::string_view data, const std::string& where) {
    provider = library.runtime() + " " + library.version();
    version = library.version();
    machine = cuda::machine(*device_);
    place = Place::Cuda;
    objects_.runtime.reset(static_cast<nvinfer1::IRuntime*>(
        library.create_runtime(&log_, static_cast<std::int32_t>(NV_TENSORRT_VERSION))));
    if (objects_.runtime == nullptr) throw RuntimeMissing(provider + " makes no runtime: " + log_.last());
    objects_.engine.reset(objects_.runtime->deserializeCudaEngine(data.data(), data.size()));
    if (objects_.engine == nullptr) {
        throw Error(where + ": " + library.runtime() + " cannot deserialise it on " + device_->name() + ": " +
                    log_.last());
    }
    read_ports();
    configure();
}

void EngineSession::read_ports() {
    const nvinfer1::ICudaEngine& engine = *objects_.engine;
    for (std::int32_t index = 0; index < engine.getNbIOTensors(); ++index) {
        const char* const called = engine.getIOTensorName(index);
        if (called == nullptr) throw Error("TensorRT has no name for tensor " + std::to_string(index) + ".");
        Port port;
        port.name = called;
        port.dtype = dtype_name(engine.getTensorDataType(called));
        port.shape.emplace();
        for (const std::int64_t size : shape_of(engine.getTensorShape(called))) {
            port.shape->push_back(size >= 0 ? std::optional<std::int64_t>(size) : std::nullopt);
        }
        const bool taken = engine.getTensorIOMode(called) == nvinfer1::TensorIOMode::kINPUT;
        (taken ? inputs : outputs).push_back(std::move(port));
    }
    for (std::int32_t index = 0; index < engine.getNbOptimizationProfiles(); ++index) {
        std::vector<Range>& ranges = profiles.emplace_back();
        for (const Port& port : inputs) {
            const auto shape = [&](nvinfer1::OptProfileSelector which) {
                return shape_of(engine.getProfileShape(port.name.c_str(), index, which));
            };
            ranges.push_back({shape(nvinfer1::OptProfileSelector::kMIN), shape(nvinfer1::OptProfileSelector::kMAX)});
        }
    }
}

void EngineSession::configure() {
#ifdef TRT_MAJOR_RTX
    objects_.config.reset(objects_.engine->createRuntimeConfig());
    if (objects_.config == nullptr) return;
    objects_.config->setExecutionContextAllocationStrategy(user_managed);
    // It captures a call as a CUDA graph by itself, where it can; if it refuses to, it launches kernels one by one.
    static_cast<void>(objects_.config->setCudaGraphStrategy(nvinfer1::CudaGraphStrategy::kWHOLE_GRAPH_CAPTURE));
    if (!cache_) return;
    objects_.compiled.reset(objects_.config->createRuntimeCache());
    if (objects_.compiled == nullptr) return;
    // A blob of another device or version is refused there and left out; it then compiles as if there were none.
    if (const auto kept = cache_->read()) objects_.compiled->deserialize(kept->data(), kept->size());
    objects_.config->setRuntimeCache(*objects_.compiled);
#endif
}

void EngineSession::keep() {
#ifdef TRT_MAJOR_RTX
    if (!cache_ || objects_.compiled == nullptr) return;
    const std::unique_ptr<nvinfer1::IHostMemory> blob(objects_.compiled->serialize());
    if (blob != nullptr) cache_->write({static_cast<const char*>(blob->data()), blob->size()});
#endif
}

/// Waits for the device, whatever it says.
void EngineSession::settle() const noexcept {
    try {
        device_->synchronize();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): another error was first
    }
}

std::vector<Tensor> EngineSession::run_device(const std::vector<Input>& given, const std::vector<bool>& stays) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<const Input*> ordered;
    std::vector<Shape> shapes;
    for (const Port& port : inputs) {
        const auto found =
            std::find_if(given.begin(), given.end(), [&](const Input& input) { return input.name() == port.name; });
        if (found == given.end()) throw FeedError("input " + reader::quoted(port.name) + ": it is not there.");
        ordered.push_back(&*found);
        shapes.push_back(found->shape());
    }
    const std::size_t profile = choose_profile(profiles, inputs, shapes);
    const cuda::Bound bound(*device_);
    const auto [context, fresh] = context_of(profile);
    std::vector<Tensor> found;
    try {
        found = computed(*context, ordered, stays);
    } catch (...) {
        settle();  // the driver may still read inputs and write outputs, whose memory goes away with this call
        throw;
    }
    if (fresh) keep();
    return found;
}

std::vector<Tensor> EngineSession::computed(nvinfer1::IExecutionContext& context,
                                            const std::vector<const Input*>& given, const std::vector<bool>& stays) {
    const bool elsewhere =
        std::any_of(given.begin(), given.end(), [](const Input* input) { return input->place() == Place::Cuda; });
    if (elsewhere) device_->synchronize_all();
    for (std::size_t index = 0; index < inputs.size(); ++index) bind_input(context, inputs[index], *given[index]);
    std::vector<const char*> missing(inputs.size() + outputs.size());
    const std::int32_t count = context.inferShapes(static_cast<std::int32_t>(missing.size()), missing.data());
    if (count != 0) {
        std::vector<std::string> open;
        for (std::int32_t index = 0; index < count && static_cast<std::size_t>(index) < missing.size(); ++index) {
            open.push_back(shown(missing[static_cast<std::size_t>(index)]));
        }
        throw Error(open.empty() ? provider + " finds no shapes: " + log_.last()
                                 : "the engine leaves the shape of " + joined(open) + " open.");
    }
    std::vector<Tensor> found;
    for (std::size_t index = 0; index < output_names_.size(); ++index) {
        found.push_back(bind_output(context, output_names_[index], stays.at(index) ? Place::Cuda : Place::Cpu));
    }
    if (!context.enqueueV3(stream())) throw Error(provider + " did not run: " + log_.last());
    for (const Tensor& tensor : found) {
        if (tensor.place() != Place::Cpu) continue;
        // The memory was made in this call, and nobody else has it yet.
        device_->download(const_cast<void*>(tensor.data()), objects_.buffers.at(tensor.name())->address(),
                          tensor.size() * size_bytes(tensor.dtype()));
    }
    device_->synchronize();
    return found;
}

void EngineSession::bind_input(nvinfer1::IExecutionContext& context, const Port& port, const Input& input) {
    const Shape& shape = input.shape();
    nvinfer1::Dims dims{};
    dims.nbDims = static_cast<std::int32_t>(shape.size());  // that of the profile, at most MAX_DIMS
    std::copy(shape.begin(), shape.end(), std::begin(dims.d));
    if (!context.setInputShape(port.name.c_str(), dims)) {
        throw Error("input " + reader::quoted(port.name) + ": TensorRT refuses shape " + listed(shape) + ": " +
                    log_.last());
    }
    const std::size_t bytes = elements(shape) * size_bytes(input.dtype());
    cuda::Address address = 0;
    if (input.place() == Place::Cuda) {
        address = checked_address(port, input);
    } else {
        address = buffer(port.name, bytes);
        device_->upload(address, input.data(), bytes);
    }
    if (!context.setTensorAddress(port.name.c_str(), pointer(address))) {
        throw Error("input " + reader::quoted(port.name) + ": TensorRT refuses its address: " + log_.last());
    }
}

cuda::Address EngineSession::checked_address(const Port& port, const Input& input) const {
    const auto address = static_cast<cuda::Address>(reinterpret_cast<std::uintptr_t>(input.data()));
    if (!device_->owns(address)) {
        throw FeedError("input " + reader::quoted(port.name) + ": got an address that is no memory of " +
                        device_->name() + ".");
    }
    if (address % alignment_bytes != 0) {
        throw FeedError("input " + reader::quoted(port.name) + ": got an address that is no multiple of " +
                        std::to_string(alignment_bytes) + ", as TensorRT asks for.");
    }
    return address;
}

Tensor EngineSession::bind_output(nvinfer1::IExecutionContext& context, const std::string& called, Place wanted) {
    const auto port = std::find_if(outputs.begin(), outputs.end(), [&](const Port& x) { return x.name == called; });
    if (port == outputs.end()) throw Error("the engine has no output " + reader::quoted(called) + ".");
    const DType dtype = dtype_of(port->dtype);
    Shape shape = shape_of(context.getTensorShape(called.c_str()));
    if (std::any_of(shape.begin(), shape.end(), [](std::int64_t size) { return size < 0; })) {
        throw Error("the engine leaves the shape of " + called + " open.");
    }
    const std::size_t bytes = elements(shape) * size_bytes(dtype);
    std::shared_ptr<const void> data;
    cuda::Address address = 0;
    if (wanted == Place::Cuda) {
        const auto memory = std::make_shared<cuda::Memory>(device_, bytes);
        address = memory->address();
        data = std::shared_ptr<const void>(memory, pointer(address));
    } else {
        address = buffer(called, bytes);
        data = allocate(bytes);
    }
    if (!context.setTensorAddress(called.c_str(), pointer(address))) {
        throw Error("output " + reader::quoted(called) + ": TensorRT refuses its address: " + log_.last());
    }
    return {called, dtype, std::move(shape), std::move(data), wanted};
}

/// The context of a profile, and whether it was made just now.
std::pair<nvinfer1::IExecutionContext*, bool> EngineSession::context_of(std::size_t profile) {
    if (const auto found = objects_.contexts.find(profile); found != objects_.contexts.end()) {
        return {found->second.get(), false};
    }
    nvinfer1::ICudaEngine& engine = *objects_.engine;
    std::unique_ptr<nvinfer1::IExecutionContext> made;
#ifdef TRT_MAJOR_RTX
    if (objects_.config != nullptr) made.reset(engine.createExecutionContext(objects_.config.get()));
    if (objects_.config == nullptr)
#endif
        made.reset(engine.createExecutionContext(user_managed));
    // Calls take turns, so that all contexts have one memory, enough for the largest profile: a context with memory of
    // its own would take as much for each profile.
    if (const std::int64_t bytes = made != nullptr ? engine.getDeviceMemorySizeV2() : 0; bytes > 0) {
        made->setDeviceMemoryV2(pointer(buffer(scratch, static_cast<std::size_t>(bytes))), bytes);
    }
    if (made == nullptr || !made->setOptimizationProfileAsync(static_cast<std::int32_t>(profile), stream())) {
        throw RuntimeMissing("TensorRT makes no context for profile " + std::to_string(profile) + ": " + log_.last());
    }
    device_->synchronize();
    return {objects_.contexts.emplace(profile, std::move(made)).first->second.get(), true};
}

/// Device memory for a tensor; kept, and made anew when it has to grow.
cuda::Address EngineSession::buffer(const std::string& called, std::size_t bytes) {
    std::unique_ptr<cuda::Memory>& held = objects_.buffers[called];
    if (held == nullptr || held->bytes() < bytes) {
        held.reset();  // first, so that both need not fit
        held = std::make_unique<cuda::Memory>(device_, bytes);
    }
    return held->address();
}

#ifdef TRT_MAJOR_RTX
constexpr Headers compiled_with{"tensorrt_rtx", TRT_MAJOR_RTX, TRT_MINOR_RTX};
#else
constexpr Headers compiled_with{"tensorrt", NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR};
#endif

/// The bytes of an engine, which is code for a device: the bundled ones, whatever was compared before. These very bytes
/// are what TensorRT gets; the file is not read again.
std::string bundled(const std::filesystem::path& path, const Manifest& manifest, const Form& form) {
    std::string data = read_bundled(path);
    if (hex(sha256(data)) != manifest.files.at(form.file).sha256) {
        throw IntegrityError(path.string() + ": changed: its SHA-256 is not that of the manifest.");
    }
    return data;
}

}  // namespace

std::unique_ptr<Session> open_engine(const std::filesystem::path& path, const Manifest& manifest,
                                     const std::string& name, const std::optional<CacheFolder>& cache) {
    const Form& form = manifest.form(name);
    check_engine_file(path, form);
    if (form.runtime != compiled_with.runtime) {
        throw RuntimeMissing(form.runtime + ": this library was built with the headers of " +
                             std::string(compiled_with.runtime) +
                             "; build one with its own: CMake's TENSORRT_INCLUDE_DIR.");
    }
    const EngineLibrary library(form.runtime, form.requires_);
    library.require(compiled_with);
    const auto device = std::make_shared<cuda::Device>();
    const std::vector<std::int64_t>& built_for = form.requires_.sm;
    const bool known =
        built_for.empty() || std::find(built_for.begin(), built_for.end(), device->sm()) != built_for.end();
    std::vector<std::string> targets;
    targets.reserve(built_for.size());
    for (const std::int64_t sm : built_for) targets.push_back(std::to_string(sm));
    if (!known && !(form.runtime == "tensorrt_rtx" && read_header(path).later)) {
        throw RuntimeMissing("the engine was built for SM " + joined(targets) + "; " + device->name() + " is SM " +
                             std::to_string(device->sm()) + ".");
    }
    std::optional<RuntimeCache> kept;
    if (cache && form.runtime == "tensorrt_rtx") {
        const std::string provider = library.runtime() + " " + library.version();
        kept.emplace(*cache, entry(manifest, name, provider, library.version(), cuda::machine(*device)));
    }
    device->open();
    const auto data = bundled(path, manifest, form);
    try {
        return std::make_unique<EngineSession>(device, library, data, path.string(), names_of(manifest.io.outputs),
                                               std::move(kept));
    } catch (const Error& err) {
        if (known) throw;
        // Whether a device that is not named is one of those still to come, TensorRT-RTX alone knows.
        throw RuntimeMissing("the engine is for SM " + joined(targets) + "; it is SM " +
                             std::to_string(device->sm()) + " here: " + err.what());
    }
}

}  // namespace attnport::reader

#endif
