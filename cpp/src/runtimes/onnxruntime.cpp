// A form that ONNX Runtime opens, on the execution provider that it was checked with and no other.
//
// The library is loaded when the first form needs it: its SONAME and versioned symbols would tie a linked binary to one
// release. Its C interface is used and not the C++ one on top of that, which keeps the loaded interface in a global that
// an application may use too.
#include <attnport/error.hpp>

#include "runtimes/session.hpp"

#if !defined(ATTNPORT_WITH_ONNXRUNTIME)

namespace attnport::reader {

std::unique_ptr<Session> open_onnxruntime(const std::filesystem::path&, const Manifest&, const Form&, const Options&) {
    throw RuntimeMissing("this reader was built without ONNX Runtime's headers; set ONNXRUNTIME_INCLUDE_DIR in CMake "
                         "to the folder of onnxruntime_c_api.h.");
}

}  // namespace attnport::reader

#else

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include <onnxruntime_c_api.h>

#include "format/files.hpp"
#include "format/text.hpp"
#include "run/arrays.hpp"
#include "runtimes/cuda.hpp"

namespace attnport::reader {
namespace {

/// What ONNX Runtime says when a call fails.
class OrtFailure : public std::runtime_error {
public:
    OrtFailure(OrtErrorCode code, const std::string& message);
    [[nodiscard]] OrtErrorCode code() const noexcept { return code_; }

private:
    OrtErrorCode code_;
};

/// Something of ONNX Runtime's that is given back by a function of its own.
template <class T> using OrtOwned = std::unique_ptr<T, void(ORT_API_CALL*)(T*)>;

/// A library that is loaded, and its environment: one in a process for each library, which stay until the process ends.
class OnnxRuntime {
public:
    OnnxRuntime(const OrtApi* api, std::string version, OrtEnv* env)
        : api_(api), version_(std::move(version)), env_(env) {}
    OnnxRuntime(const OnnxRuntime&) = delete;
    OnnxRuntime& operator=(const OnnxRuntime&) = delete;
    ~OnnxRuntime() = default;

    [[nodiscard]] const OrtApi& api() const noexcept { return *api_; }
    [[nodiscard]] OrtEnv* env() const noexcept { return env_; }
    [[nodiscard]] const std::string& version() const noexcept { return version_; }

    /// Throws OrtFailure for a status that is one; frees it.
    void check(OrtStatus* status) const;

    /// Calls a function whose last parameter takes what it made.
    template <class T, class Make> [[nodiscard]] OrtOwned<T> made(void(ORT_API_CALL* release)(T*), Make make) const {
        T* found = nullptr;
        check(make(&found));
        return {found, release};
    }

    /// The execution providers that it was built with.
    [[nodiscard]] std::vector<std::string> providers() const;

private:
    const OrtApi* api_;
    std::string version_;
    OrtEnv* env_;
};

#if defined(__APPLE__)
constexpr const char* default_library = "libonnxruntime.dylib";
#else
constexpr const char* default_library = "libonnxruntime.so.1";
#endif
constexpr const char* environment_variable = "ATTNPORT_ONNXRUNTIME";

/// Every library that this process has loaded, by the address of its entry.
struct Libraries {
    std::mutex lock;
    std::map<const OrtApiBase*, std::unique_ptr<OnnxRuntime>> loaded;
};

/// ONNX Runtime has one environment in a process, so what is loaded belongs to the process as well. It is never
/// destroyed: at the end of a process the library's own globals may go first, and models of an application later.
Libraries& libraries() {
    static Libraries* const found = std::make_unique<Libraries>().release();
    return *found;
}

std::string library_name(const std::filesystem::path& asked) {
    if (!asked.empty()) return asked.string();
    const char* named = std::getenv(environment_variable);  // NOLINT(concurrency-mt-unsafe): nothing here sets one
    return named != nullptr && *named != '\0' ? named : default_library;
}

/// What to do about a library that will not do; `later` is the least release that does.
std::string how_to_set(const std::string& later) {
    return std::string("set ") + environment_variable + " (or Options::onnxruntime) to the library of onnxruntime " +
           later + ", such as libonnxruntime.so of its package";
}

std::string wanted_release(const Requires& wanted) {
    return wanted.exact ? wanted.runtime : wanted.runtime + " or later";
}

const OrtApiBase* entry_of(const std::string& library, const Requires& wanted) {
    // Never closed: ONNX Runtime's threads and globals do not survive that.
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread, on Linux and macOS
        throw RuntimeMissing(std::string("onnxruntime cannot be loaded: ") +
                             (reason != nullptr ? reason : library.c_str()) + "; " +
                             how_to_set(wanted_release(wanted)) + ".");
    }
    using Entry = const OrtApiBase*(ORT_API_CALL*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(handle, "OrtGetApiBase"));
    const OrtApiBase* base = entry == nullptr ? nullptr : entry();
    if (base == nullptr) {
        throw RuntimeMissing(library + " is not a library of onnxruntime: it has no OrtGetApiBase; " +
                             how_to_set(wanted_release(wanted)) + ".");
    }
    return base;
}

/// The C interface of the headers that this file is compiled with. Release 1.N has N of them, and asking an older one
/// prints to stderr, so its number is looked at first.
const OrtApi* interface_of(const OrtApiBase* base, const std::string& version) {
    const auto numbers = release(version);
    const bool known = numbers.size() >= 2 && numbers[0] == 1;
    const OrtApi* api = known && numbers[1] < ORT_API_VERSION ? nullptr : base->GetApi(ORT_API_VERSION);
    if (api != nullptr) return api;
    const std::string later = "1." + std::to_string(ORT_API_VERSION);
    throw RuntimeMissing("got onnxruntime " + version + "; this reader was compiled with headers of API " +
                         std::to_string(ORT_API_VERSION) + ", so it needs " + later + " or later; " +
                         how_to_set(later + " or later") + ".");
}

OrtEnv* environment(const OrtApi* api) {
    OrtEnv* env = nullptr;
    // Errors are raised; they need not be printed as well.
    OrtStatus* status = api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "attnport_bundle", &env);
    if (status == nullptr) return env;
    const std::string message = api->GetErrorMessage(status);
    api->ReleaseStatus(status);
    throw RuntimeMissing("onnxruntime does not start: " + escaped(message));
}

OrtFailure::OrtFailure(OrtErrorCode code, const std::string& message)
    : std::runtime_error(escaped(message)), code_(code) {}

void OnnxRuntime::check(OrtStatus* status) const {
    if (status == nullptr) return;
    const OrtOwned<OrtStatus> owned(status, api_->ReleaseStatus);
    throw OrtFailure(api_->GetErrorCode(status), api_->GetErrorMessage(status));
}

std::vector<std::string> OnnxRuntime::providers() const {
    char** names = nullptr;
    int count = 0;
    check(api_->GetAvailableProviders(&names, &count));
    std::vector<std::string> found(names, names + count);
    check(api_->ReleaseAvailableProviders(names, count));
    return found;
}

/// What `work` returns; a failure of ONNX Runtime's in it is an Error.
template <class Work> auto told(const Work& work) {
    try {
        return work();
    } catch (const OrtFailure& err) {
        throw Error(std::string("onnxruntime failed: ") + err.what());
    }
}

/// The library in `asked`, else in $ATTNPORT_ONNXRUNTIME, else the loader's. Throws RuntimeMissing: there is none, it
/// is not the release that a form needs, or it is older than the headers that this reader was compiled with.
OnnxRuntime& load_onnxruntime(const std::filesystem::path& asked, const Requires& wanted) {
    const OrtApiBase* base = entry_of(library_name(asked), wanted);
    const std::string version = base->GetVersionString();
    require_release("onnxruntime", version, wanted, how_to_set(wanted_release(wanted)));
    Libraries& known = libraries();
    const std::lock_guard<std::mutex> held(known.lock);
    auto& slot = known.loaded[base];
    if (slot == nullptr) {
        const OrtApi* api = interface_of(base, version);
        slot = std::make_unique<OnnxRuntime>(api, version, environment(api));
    }
    return *slot;
}

constexpr const char* cpu_provider = "CPUExecutionProvider";
constexpr const char* cuda_provider = "CUDAExecutionProvider";
constexpr const char* tensorrt_provider = "TensorrtExecutionProvider";
constexpr const char* rtx_provider = "NvTensorRTRTXExecutionProvider";

/// The provider that a session was made for, and where it computes.
struct Chosen {
    std::string provider;
    Place place = Place::Cpu;
    /// Of a session that captures CUDA graphs: opens the file again, for one that captures none.
    std::function<OrtOwned<OrtSession>()> without_graphs;
};

/// The option of a run that says under which number its graph is captured or replayed, and that of a run without one.
constexpr const char* graph_number = "gpu_graph_id";
constexpr const char* no_graph = "-1";
/// The most shapes of inputs that are captured: each graph has memory of its own.
constexpr std::size_t most_graphs = 8;

struct ElementType {
    ONNXTensorElementDataType type;
    DType dtype;
};
/// The key of the metadata of a model that writes to its caches where input and output are one buffer.
constexpr const char* in_place = "attnport.in_place";

constexpr std::array<ElementType, 7> element_types{{
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, DType::Float32},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, DType::Float16},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, DType::Float64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, DType::Int32},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, DType::Int64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, DType::Bool},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, DType::BFloat16},
}};

ONNXTensorElementDataType element_type(DType dtype) {
    for (const auto& known : element_types) {
        if (known.dtype == dtype) return known.type;
    }
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

/// Throws Error for a type that no bundle has: the file said otherwise when it was opened.
DType dtype_of(ONNXTensorElementDataType type) {
    for (const auto& known : element_types) {
        if (known.type == type) return known.dtype;
    }
    throw Error("onnxruntime gave an output of element type " + std::to_string(type) + ", which no bundle has.");
}

/// The name of an element type, which may be one that no bundle has.
std::string word_of(ONNXTensorElementDataType type) {
    for (const auto& known : element_types) {
        if (known.type == type) return std::string(name(known.dtype));
    }
    return "element type " + std::to_string(type) + " of ONNX";
}

std::vector<const char*> words_of(const std::vector<std::string>& names) {
    std::vector<const char*> found;
    found.reserve(names.size());
    for (const auto& called : names) found.push_back(called.c_str());
    return found;
}

std::size_t bytes_of(const Input& input) { return elements(input.shape()) * size_bytes(input.dtype()); }

/// Whether an address is one of an input's own bytes.
bool lies_in(const std::vector<Input>& given, const void* address) {
    return std::any_of(given.begin(), given.end(), [address](const Input& input) {
        const std::size_t bytes = bytes_of(input);
        const auto* const begin = static_cast<const std::byte*>(input.data());
        const std::less<> is_before;
        return bytes != 0 && !is_before(address, static_cast<const void*>(begin)) &&
               is_before(address, static_cast<const void*>(begin + bytes));
    });
}

/// A tensor with memory of its own.
Tensor copied(const std::string& called, DType dtype, Shape shape, const void* data) {
    const std::size_t bytes = elements(shape) * size_bytes(dtype);
    auto memory = allocate(bytes);
    if (bytes != 0) std::memcpy(memory.get(), data, bytes);
    return {called, dtype, std::move(shape), std::move(memory)};
}

class OnnxRuntimeSession final : public Session {
public:
    OnnxRuntimeSession(OnnxRuntime& library, OrtOwned<OrtSession> session, const IO& io, Chosen chosen)
        : library_(library),
          api_(library.api()),
          session_(std::move(session)),
          input_names_(names_of(io.inputs)),
          output_names_(names_of(io.outputs)),
          input_words_(words_of(input_names_)),
          output_words_(words_of(output_names_)),
          on_cpu_(library.made<OrtMemoryInfo>(api_.ReleaseMemoryInfo, [&](OrtMemoryInfo** made) {
              return api_.CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, made);
          })),
          on_device_(library.made<OrtMemoryInfo>(api_.ReleaseMemoryInfo, [&](OrtMemoryInfo** made) {
              return chosen.place == Place::Cuda
                         ? api_.CreateMemoryInfo("Cuda", OrtDeviceAllocator, 0, OrtMemTypeDefault, made)
                         : api_.CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, made);
          })),
          run_options_(new_options()) {
        provider = std::move(chosen.provider);
        place = chosen.place;
        wants_eights = provider == cuda_provider;
        version = library.version();
        machine = place == Place::Cuda ? this_gpu() : this_cpu();
        inputs = ports(true);
        outputs = ports(false);
        writes_in_place_ = place == Place::Cpu && says_in_place();
        without_graphs_ = std::move(chosen.without_graphs);
        if (without_graphs_ == nullptr) return;
        library_.check(api_.AddRunConfigEntry(run_options_.get(), graph_number, no_graph));
        const auto device = std::make_shared<cuda::Device>();
        device->open();
        device_ = device;
    }

    std::vector<Tensor> run(const std::vector<Input>& given) override {
        require_one_each(given);
        const auto turn = this_turn();
        if (device_ == nullptr) return plainly(given);
        std::vector<Shape> shapes(given.size());
        std::transform(given.begin(), given.end(), shapes.begin(), [](const Input& input) { return input.shape(); });
        const auto graph = graphs_.find(shapes);
        std::vector<Tensor> found;
        if (graph == graphs_.end()) found = plainly(given);  // an error of the call itself is the caller's
        try {
            if (graph != graphs_.end()) return replayed(graph->second, given);
            if (is_worth_a_graph(shapes)) capture(shapes, given, found);
        } catch (const std::exception&) {  // a failed capture may leave a stream that is lost
            graphs_.clear();
            device_ = nullptr;
            session_ = told(without_graphs_);
        }
        return found.empty() ? plainly(given) : found;
    }

    [[nodiscard]] bool writes_in_place() const override { return writes_in_place_; }

    std::vector<Tensor> run_in_place(const std::vector<Input>& given,
                                                         const std::vector<std::optional<std::size_t>>& shared) override {
        require_one_each(given);
        return told([&] {
            const auto owned = values(given);
            std::vector<const OrtValue*> fed;
            fed.reserve(owned.size());
            for (const auto& one : owned) fed.push_back(one.get());
            // A value that is there is written to; ONNX Runtime makes the others.
            std::vector<OrtValue*> found;
            found.reserve(shared.size());
            for (const auto& input : shared) found.push_back(input ? owned.at(*input).get() : nullptr);
            library_.check(api_.Run(session_.get(), run_options_.get(), input_words_.data(), fed.data(), fed.size(),
                                    output_words_.data(), output_words_.size(), found.data()));
            return tensors(found.data(), given, shared);
        });
    }

    std::vector<Tensor> run_device(const std::vector<Input>& given, const std::vector<bool>& stays) override {
        if (place == Place::Cpu) return run(given);
        require_one_each(given);
        const auto turn = this_turn();
        return told([&] {
            const auto owned = values(given);
            const auto binding = new_binding();
            for (std::size_t index = 0; index < owned.size(); ++index) {
                library_.check(api_.BindInput(binding.get(), input_words_[index], owned[index].get()));
            }
            for (std::size_t index = 0; index < output_words_.size(); ++index) {
                const OrtMemoryInfo* const memory = stays.at(index) ? on_device_.get() : on_cpu_.get();
                library_.check(api_.BindOutputToDevice(binding.get(), output_words_[index], memory));
            }
            library_.check(api_.SynchronizeBoundInputs(binding.get()));
            library_.check(api_.RunWithBinding(session_.get(), run_options_.get(), binding.get()));
            library_.check(api_.SynchronizeBoundOutputs(binding.get()));
            OrtAllocator* allocator = nullptr;
            library_.check(api_.GetAllocatorWithDefaultOptions(&allocator));
            OrtValue** found = nullptr;
            std::size_t count = 0;
            library_.check(api_.GetBoundOutputValues(binding.get(), allocator, &found, &count));
            const auto give_back = [allocator](OrtValue** memory) { allocator->Free(allocator, memory); };
            const std::unique_ptr<OrtValue*, decltype(give_back)> array(found, give_back);
            if (count != output_words_.size()) throw Error("onnxruntime gave " + std::to_string(count) + " outputs.");
            return tensors(found, given, std::vector<std::optional<std::size_t>>(count));
        });
    }

private:
    /// A call of some shapes that was captured, with the memory that it reads and writes: inputs, then outputs.
    struct Graph {
        std::vector<std::unique_ptr<cuda::Memory>> memory;
        std::vector<OrtOwned<OrtValue>> values;
        OrtOwned<OrtIoBinding> binding;
        OrtOwned<OrtRunOptions> options;
        std::vector<Tensor> outputs;  ///< those of the first call: their names, dtypes and shapes
    };

    OrtOwned<OrtRunOptions> new_options() const {
        auto found = library_.made<OrtRunOptions>(
            api_.ReleaseRunOptions, [&](OrtRunOptions** made) { return api_.CreateRunOptions(made); });
        library_.check(api_.RunOptionsSetRunLogSeverityLevel(found.get(), ORT_LOGGING_LEVEL_FATAL));
        return found;
    }

    OrtOwned<OrtIoBinding> new_binding() const {
        return library_.made<OrtIoBinding>(
            api_.ReleaseIoBinding, [&](OrtIoBinding** made) { return api_.CreateIoBinding(session_.get(), made); });
    }

    /// A session that captures graphs runs one call at a time.
    [[nodiscard]] std::unique_lock<std::mutex> this_turn() {
        return without_graphs_ != nullptr ? std::unique_lock(turn_) : std::unique_lock<std::mutex>();
    }

    std::vector<Tensor> plainly(const std::vector<Input>& given) {
        return run_in_place(given, std::vector<std::optional<std::size_t>>(output_words_.size()));
    }

    /// Whether shapes came before: of small batches, the host takes longer to start kernels than the device to run them.
    bool is_worth_a_graph(const std::vector<Shape>& shapes) {
        const bool is_empty = std::any_of(shapes.begin(), shapes.end(), [](const Shape& s) { return elements(s) == 0; });
        return !is_empty && graphs_.size() < most_graphs && !seen_.insert(shapes).second;
    }

    /// Captures a call as a CUDA graph. Throws what ONNX Runtime does where it cannot, and Error where the graph gives
    /// other numbers than `first`, those of a run without it.
    void capture(const std::vector<Shape>& shapes, const std::vector<Input>& given, const std::vector<Tensor>& first) {
        Graph graph = bound(given, first);
        const auto found = replayed(graph, given);
        for (std::size_t index = 0; index < found.size(); ++index) {
            if (std::memcmp(found[index].data(), first[index].data(), bytes_of(found[index])) != 0) {
                throw Error("the graph gives other numbers.");
            }
        }
        graphs_.emplace(shapes, std::move(graph));
    }

    Graph bound(const std::vector<Input>& given, std::vector<Tensor> first) const {
        Graph graph{{}, {}, new_binding(), new_options(), std::move(first)};
        const std::string number = std::to_string(graphs_.size() + 1);
        library_.check(api_.AddRunConfigEntry(graph.options.get(), graph_number, number.c_str()));
        const auto held = [&](const Input& like) {
            graph.memory.push_back(std::make_unique<cuda::Memory>(device_, bytes_of(like)));
            const auto address = static_cast<std::uintptr_t>(graph.memory.back()->address());
            const void* const data = reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
            graph.values.push_back(value(Input(like.name(), data, like.dtype(), like.shape(), Place::Cuda)));
            return graph.values.back().get();
        };
        for (std::size_t index = 0; index < given.size(); ++index) {
            library_.check(api_.BindInput(graph.binding.get(), input_words_[index], held(given[index])));
        }
        for (std::size_t index = 0; index < graph.outputs.size(); ++index) {
            library_.check(api_.BindOutput(graph.binding.get(), output_words_[index], held(graph.outputs[index])));
        }
        return graph;
    }

    /// Captures a graph by its first call; later ones replay it.
    std::vector<Tensor> replayed(const Graph& graph, const std::vector<Input>& given) const {
        const cuda::Bound current(*device_);
        for (std::size_t index = 0; index < given.size(); ++index) {
            device_->upload(graph.memory[index]->address(), given[index].data(), bytes_of(given[index]));
        }
        device_->synchronize();
        library_.check(api_.RunWithBinding(session_.get(), graph.options.get(), graph.binding.get()));
        std::vector<Tensor> found;
        for (std::size_t index = 0; index < graph.outputs.size(); ++index) {
            const Tensor& like = graph.outputs[index];
            std::shared_ptr<std::byte> memory = allocate(bytes_of(like));
            device_->download(memory.get(), graph.memory[given.size() + index]->address(), bytes_of(like));
            found.emplace_back(like.name(), like.dtype(), like.shape(), std::move(memory));
        }
        device_->synchronize();
        return found;
    }

    bool says_in_place() const {
        OrtAllocator* allocator = nullptr;
        library_.check(api_.GetAllocatorWithDefaultOptions(&allocator));
        const auto metadata = library_.made<OrtModelMetadata>(api_.ReleaseModelMetadata, [&](OrtModelMetadata** made) {
            return api_.SessionGetModelMetadata(session_.get(), made);
        });
        char* text = nullptr;
        library_.check(api_.ModelMetadataLookupCustomMetadataMap(metadata.get(), allocator, in_place, &text));
        if (text == nullptr) return false;
        allocator->Free(allocator, text);
        return true;
    }

    std::vector<Port> ports(bool of_inputs) const {
        const OrtSession* session = session_.get();
        OrtAllocator* allocator = nullptr;
        library_.check(api_.GetAllocatorWithDefaultOptions(&allocator));
        std::size_t count = 0;
        library_.check(of_inputs ? api_.SessionGetInputCount(session, &count)
                                 : api_.SessionGetOutputCount(session, &count));
        std::vector<Port> found;
        for (std::size_t index = 0; index < count; ++index) {
            char* text = nullptr;
            library_.check(of_inputs ? api_.SessionGetInputName(session, index, allocator, &text)
                                     : api_.SessionGetOutputName(session, index, allocator, &text));
            const auto give_back = [allocator](char* memory) { allocator->Free(allocator, memory); };
            const std::unique_ptr<char, decltype(give_back)> owned(text, give_back);
            const auto info = library_.made<OrtTypeInfo>(api_.ReleaseTypeInfo, [&](OrtTypeInfo** made) {
                return of_inputs ? api_.SessionGetInputTypeInfo(session, index, made)
                                 : api_.SessionGetOutputTypeInfo(session, index, made);
            });
            found.push_back(port(text, info.get()));
        }
        return found;
    }

    Port port(const std::string& called, const OrtTypeInfo* info) const {
        ONNXType kind = ONNX_TYPE_UNKNOWN;
        library_.check(api_.GetOnnxTypeFromTypeInfo(info, &kind));
        if (kind != ONNX_TYPE_TENSOR) return {called, "no tensor", std::nullopt};
        const OrtTensorTypeAndShapeInfo* described = nullptr;
        library_.check(api_.CastTypeInfoToTensorInfo(info, &described));
        ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        library_.check(api_.GetTensorElementType(described, &type));
        std::size_t rank = 0;
        library_.check(api_.GetDimensionsCount(described, &rank));
        // ONNX Runtime shows an unknown rank as it shows a scalar.
        if (rank == 0) return {called, word_of(type), std::nullopt};
        Shape sizes(rank);
        library_.check(api_.GetDimensions(described, sizes.data(), rank));
        std::vector<std::optional<std::int64_t>> shape;
        for (const auto size : sizes) shape.push_back(size >= 0 ? std::optional(size) : std::nullopt);
        return {called, word_of(type), std::move(shape)};
    }

    /// A view of the caller's memory: nothing is copied on the CPU.
    OrtOwned<OrtValue> value(const Input& input) const {
        const OrtMemoryInfo* memory = input.place() == Place::Cpu ? on_cpu_.get() : on_device_.get();
        const std::size_t bytes = bytes_of(input);
        return library_.made<OrtValue>(api_.ReleaseValue, [&](OrtValue** made) {
            // Inputs are only read; ONNX Runtime has no pointer to const here.
            return api_.CreateTensorWithDataAsOrtValue(memory, const_cast<void*>(input.data()), bytes, input.shape().data(),
                                                       input.shape().size(), element_type(input.dtype()), made);
        });
    }

    std::vector<OrtOwned<OrtValue>> values(const std::vector<Input>& given) const {
        std::vector<OrtOwned<OrtValue>> found;
        found.reserve(given.size());
        for (const auto& input : given) found.push_back(value(input));
        return found;
    }

    /// An output: the memory that the runtime wrote, which lives as long as the tensor does. An input that the graph gives
    /// on is the caller's memory, which need not stay behind the call: that is copied.
    Tensor tensor(const std::string& called, OrtOwned<OrtValue> value,
                                      const std::vector<Input>& given) const {
        const auto info = library_.made<OrtTensorTypeAndShapeInfo>(
            api_.ReleaseTensorTypeAndShapeInfo,
            [&](OrtTensorTypeAndShapeInfo** made) { return api_.GetTensorTypeAndShape(value.get(), made); });
        ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        library_.check(api_.GetTensorElementType(info.get(), &type));
        std::size_t rank = 0;
        library_.check(api_.GetDimensionsCount(info.get(), &rank));
        Shape shape(rank);
        library_.check(api_.GetDimensions(info.get(), shape.data(), rank));
        void* data = nullptr;
        library_.check(api_.GetTensorMutableData(value.get(), &data));
        const DType dtype = dtype_of(type);
        const bool is_the_callers = lies_in(given, data);
        if (place == Place::Cpu) {
            if (is_the_callers) return copied(called, dtype, std::move(shape), data);
            const std::shared_ptr<OrtValue> owner(std::move(value));
            return {called, dtype, std::move(shape), std::shared_ptr<const void>(owner, data)};
        }
        const OrtMemoryInfo* memory = nullptr;
        library_.check(api_.GetTensorMemoryInfo(value.get(), &memory));
        OrtMemoryInfoDeviceType device = OrtMemoryInfoDeviceType_CPU;
        api_.MemoryInfoGetDeviceType(memory, &device);
        const auto where = device == OrtMemoryInfoDeviceType_GPU ? Place::Cuda : Place::Cpu;
        if (is_the_callers) {
            if (where == Place::Cpu) return copied(called, dtype, std::move(shape), data);
            throw Error("output " + reader::quoted(called) +
                        ": it is the caller's own memory on the GPU, which may go away; call run.");
        }
        const auto session = session_;
        const auto release = value.get_deleter();
        const std::shared_ptr<OrtValue> owner(value.release(), [session, release](OrtValue* held) { release(held); });
        return {called, dtype, std::move(shape), std::shared_ptr<const void>(owner, data), where};
    }

    /// Takes values in the contract's order over, but those that share memory with an input.
    std::vector<Tensor> tensors(OrtValue* const* values, const std::vector<Input>& given,
                                                    const std::vector<std::optional<std::size_t>>& shared) const {
        std::vector<OrtOwned<OrtValue>> owned;
        owned.reserve(output_names_.size());
        for (std::size_t index = 0; index < output_names_.size(); ++index) {
            owned.emplace_back(shared[index] ? nullptr : values[index], api_.ReleaseValue);
        }
        std::vector<Tensor> found;
        found.reserve(owned.size());
        for (std::size_t index = 0; index < owned.size(); ++index) {
            if (shared[index]) continue;
            found.push_back(tensor(output_names_[index], std::move(owned[index]), given));
        }
        return found;
    }

    void require_one_each(const std::vector<Input>& given) const {
        if (given.size() == input_names_.size()) return;
        throw FeedError("got " + std::to_string(given.size()) + " inputs; expected " + joined(input_names_) + ".");
    }

    OnnxRuntime& library_;
    const OrtApi& api_;
    // Shared with outputs that stay on a device: the memory there is the session's.
    std::shared_ptr<OrtSession> session_;
    std::vector<std::string> input_names_;
    std::vector<std::string> output_names_;
    std::vector<const char*> input_words_;
    std::vector<const char*> output_words_;
    OrtOwned<OrtMemoryInfo> on_cpu_;
    OrtOwned<OrtMemoryInfo> on_device_;
    OrtOwned<OrtRunOptions> run_options_;
    bool writes_in_place_ = false;
    std::function<OrtOwned<OrtSession>()> without_graphs_;  ///< none where no graph was ever captured
    std::mutex turn_;
    std::shared_ptr<const cuda::Device> device_;  ///< null where graphs are captured no more
    std::set<std::vector<Shape>> seen_;           ///< shapes that came once
    std::map<std::vector<Shape>, Graph> graphs_;
};

/// Opens the file on an execution provider.
class Starting {
public:
    Starting(OnnxRuntime& library, const std::filesystem::path& path, const Manifest& manifest, const Form& form,
             const Options& options)
        : library_(library), api_(library.api()), path_(path), manifest_(manifest), form_(form), options_(options) {}

    /// Throws RuntimeMissing where the provider does not start, and Error where the file is refused.
    std::unique_ptr<Session> with(const std::string& called) {
        if (called == cuda_provider) {
            try {
                return with(called, true);
            } catch (const RuntimeMissing&) {  // NOLINT(bugprone-empty-catch): such as for nodes that the CPU computes
            }
        }
        return with(called, false);
    }

private:
    std::unique_ptr<Session> with(const std::string& called, bool graphs) {
        const auto settings = settings_for(called);
        Chosen chosen{called, Place::Cpu, nullptr};
        if (graphs) {
            chosen.without_graphs = [again = *this, called]() mutable {
                const auto plain = again.settings_for(called);
                again.append(called, plain.get(), false);
                return again.session(plain.get());
            };
        }
        // Other providers move weights to their device, and not all of them were tried with such.
        const bool reads = called == cpu_provider && !form_.external.empty() && !may_map(manifest_, form_);
        try {
            chosen.place = append(called, settings.get(), graphs);
            const std::vector<std::string> weights = reads ? give_weights(settings.get()) : std::vector<std::string>();
            auto made = session(settings.get());
            return std::make_unique<OnnxRuntimeSession>(library_, std::move(made), manifest_.io, std::move(chosen));
        } catch (const OrtFailure& err) {
            if (called != cpu_provider && !blames_the_file(err.code())) {
                throw RuntimeMissing(called + " does not start here: " + err.what());
            }
            throw Error(path_.string() + " cannot be opened: " + err.what());
        }
    }

    OrtOwned<OrtSessionOptions> settings_for(const std::string& called) {
        auto settings = library_.made<OrtSessionOptions>(
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
        return settings;
    }

    OrtOwned<OrtSession> session(const OrtSessionOptions* settings) {
        return library_.made<OrtSession>(api_.ReleaseSession, [&](OrtSession** made) {
            return api_.CreateSession(library_.env(), path_.c_str(), settings, made);
        });
    }

    /// The bytes of the weights files, which the options point to until the session is there.
    std::vector<std::string> give_weights(OrtSessionOptions* settings) {
        std::vector<std::string> found;
        std::vector<const char*> names;
        std::vector<char*> data;
        std::vector<std::size_t> sizes;
        for (const std::string& name : form_.external) found.push_back(read_bundled(path_.parent_path() / name));
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
    Place append(const std::string& called, OrtSessionOptions* settings, bool graphs) {
        const std::vector<std::string> built_in = library_.providers();
        if (std::find(built_in.begin(), built_in.end(), called) == built_in.end()) {
            throw RuntimeMissing("this onnxruntime was built without " + called + ".");
        }
        if (called == cpu_provider) return Place::Cpu;  // always there, behind all others
        if (called == cuda_provider) {
            append_cuda(settings, graphs);
        } else if (called == tensorrt_provider) {
            append_tensorrt(settings);
        } else if (called == rtx_provider) {
            // The short name is the one that every release takes here.
            library_.check(api_.SessionOptionsAppendExecutionProvider(settings, "NvTensorRtRtx", nullptr, nullptr, 0));
        } else {
            throw RuntimeMissing("this reader has no way to start " + called + ".");
        }
        return Place::Cuda;
    }

    void append_cuda(OrtSessionOptions* settings, bool graphs) {
        const auto made = library_.made<OrtCUDAProviderOptionsV2>(
            api_.ReleaseCUDAProviderOptions,
            [&](OrtCUDAProviderOptionsV2** found) { return api_.CreateCUDAProviderOptions(found); });
        // TF32 keeps 10 of float32's 23 bits of mantissa: a precision of its own, and never meant by fp32. An exhaustive
        // search for the algorithm of a convolution is begun anew at every new size.
        std::vector<const char*> keys{"use_tf32", "cudnn_conv_algo_search", "enable_cuda_graph"};
        std::vector<const char*> values{"0", "HEURISTIC", graphs ? "1" : "0"};
        // As Python's provider_options (attnport_bundle/runtimes/cuda.py): below SM 90, cuDNN's attention is taken only
        // where it is asked for; below SM 80 it has none.
        const int sm = this_gpu().sm;
        if (sm >= 80 && sm < 90 && dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL) != nullptr) {
            keys.push_back("sdpa_kernel");
            values.push_back("27");  // flash, memory-efficient, cuDNN's, unfused
        }
        library_.check(api_.UpdateCUDAProviderOptions(made.get(), keys.data(), values.data(), keys.size()));
        library_.check(api_.SessionOptionsAppendExecutionProvider_CUDA_V2(settings, made.get()));
    }

    void append_tensorrt(OrtSessionOptions* settings) {
        const auto made = library_.made<OrtTensorRTProviderOptionsV2>(
            api_.ReleaseTensorRTProviderOptions,
            [&](OrtTensorRTProviderOptionsV2** found) { return api_.CreateTensorRTProviderOptions(found); });
        library_.check(api_.SessionOptionsAppendExecutionProvider_TensorRT_V2(settings, made.get()));
    }

    /// Whether a failure says that the file is at fault, whatever it is opened with.
    static bool blames_the_file(OrtErrorCode code) {
        return code == ORT_NO_SUCHFILE || code == ORT_NO_MODEL || code == ORT_INVALID_PROTOBUF ||
               code == ORT_INVALID_GRAPH;
    }

    OnnxRuntime& library_;
    const OrtApi& api_;
    std::filesystem::path path_;
    const Manifest& manifest_;
    const Form& form_;
    Options options_;
};

}  // namespace

std::unique_ptr<Session> open_onnxruntime(const std::filesystem::path& path, const Manifest& manifest, const Form& form,
                                          const Options& options) {
    OnnxRuntime& library = load_onnxruntime(options.onnxruntime, form.requires_);
    return told(
        [&] { return Starting(library, path, manifest, form, options).with(form.provider.value_or(cpu_provider)); });
}

}  // namespace attnport::reader

#endif
