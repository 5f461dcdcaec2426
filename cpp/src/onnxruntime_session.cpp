#if defined(ATTNPORT_WITH_ONNXRUNTIME)

#include "onnxruntime_session.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>

#include <attnport/error.hpp>

#include "memory.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

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

/// ONNX's own word for an element type.
std::string word_of(ONNXTensorElementDataType type) {
    for (const auto& known : element_types) {
        if (known.type == type) return std::string(name(known.dtype));
    }
    static constexpr std::array words{"undefined", "float32", "uint8",   "int8",    "uint16",    "int16",
                                      "int32",     "int64",   "string",  "bool",    "float16",   "float64",
                                      "uint32",    "uint64",  "complex64", "complex128", "bfloat16"};
    const auto index = static_cast<std::size_t>(type);
    return index < words.size() ? words.at(index) : "element type " + std::to_string(type);
}

std::string word_of(ONNXType type) {
    switch (type) {
        case ONNX_TYPE_SEQUENCE: return "seq";
        case ONNX_TYPE_MAP: return "map";
        case ONNX_TYPE_OPTIONAL: return "optional";
        case ONNX_TYPE_SPARSETENSOR: return "sparse_tensor";
        default: return "no tensor";
    }
}

std::vector<const char*> words_of(const std::vector<std::string>& names) {
    std::vector<const char*> found;
    found.reserve(names.size());
    for (const auto& called : names) found.push_back(called.c_str());
    return found;
}

/// Whether an address is one of an input's own bytes.
bool lies_in(const std::vector<Input>& given, const void* address) {
    return std::any_of(given.begin(), given.end(), [address](const Input& input) {
        const std::size_t bytes = elements(input.shape()) * size_bytes(input.dtype());
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

}  // namespace

OnnxRuntimeSession::OnnxRuntimeSession(OnnxRuntime& library, OrtOwned<OrtSession> session, const IO& io, Chosen chosen)
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
      run_options_(library.made<OrtRunOptions>(
          api_.ReleaseRunOptions, [&](OrtRunOptions** made) { return api_.CreateRunOptions(made); })) {
    library_.check(api_.RunOptionsSetRunLogSeverityLevel(run_options_.get(), ORT_LOGGING_LEVEL_FATAL));
    provider = std::move(chosen.provider);
    place = chosen.place;
    version = library.version();
    machine = place == Place::Cuda ? this_gpu() : this_cpu();
    inputs = ports(true);
    outputs = ports(false);
    writes_in_place_ = place == Place::Cpu && says_in_place();
}

bool OnnxRuntimeSession::says_in_place() const {
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

std::vector<Port> OnnxRuntimeSession::ports(bool of_inputs) const {
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

Port OnnxRuntimeSession::port(const std::string& called, const OrtTypeInfo* info) const {
    ONNXType kind = ONNX_TYPE_UNKNOWN;
    library_.check(api_.GetOnnxTypeFromTypeInfo(info, &kind));
    if (kind != ONNX_TYPE_TENSOR) return {called, word_of(kind), std::nullopt};
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
OrtOwned<OrtValue> OnnxRuntimeSession::value(const Input& input) const {
    const OrtMemoryInfo* memory = input.place() == Place::Cpu ? on_cpu_.get() : on_device_.get();
    const std::size_t bytes = elements(input.shape()) * size_bytes(input.dtype());
    return library_.made<OrtValue>(api_.ReleaseValue, [&](OrtValue** made) {
        // Inputs are only read; ONNX Runtime has no pointer to const here.
        return api_.CreateTensorWithDataAsOrtValue(memory, const_cast<void*>(input.data()), bytes, input.shape().data(),
                                                   input.shape().size(), element_type(input.dtype()), made);
    });
}

std::vector<OrtOwned<OrtValue>> OnnxRuntimeSession::values(const std::vector<Input>& given) const {
    std::vector<OrtOwned<OrtValue>> found;
    found.reserve(given.size());
    for (const auto& input : given) found.push_back(value(input));
    return found;
}

/// An output: the memory that the runtime wrote, which lives as long as the tensor does. An input that the graph gives
/// on is the caller's memory, which need not stay behind the call: that is copied.
Tensor OnnxRuntimeSession::tensor(const std::string& called, OrtOwned<OrtValue> value,
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
std::vector<Tensor> OnnxRuntimeSession::tensors(OrtValue* const* values, const std::vector<Input>& given,
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

void OnnxRuntimeSession::require_one_each(const std::vector<Input>& given) const {
    if (given.size() == input_names_.size()) return;
    throw FeedError("got " + std::to_string(given.size()) + " inputs; expected " + joined(input_names_) + ".");
}

std::vector<Tensor> OnnxRuntimeSession::run(const std::vector<Input>& given) {
    return run_in_place(given, std::vector<std::optional<std::size_t>>(output_words_.size()));
}

std::vector<Tensor> OnnxRuntimeSession::run_in_place(const std::vector<Input>& given,
                                                     const std::vector<std::optional<std::size_t>>& shared) {
    require_one_each(given);
    try {
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
    } catch (const OrtFailure& err) {
        throw Error(std::string("onnxruntime failed: ") + err.what());
    }
}

std::vector<Tensor> OnnxRuntimeSession::run_device(const std::vector<Input>& given) {
    if (place == Place::Cpu) return run(given);
    require_one_each(given);
    try {
        const auto owned = values(given);
        const auto binding = library_.made<OrtIoBinding>(api_.ReleaseIoBinding, [&](OrtIoBinding** made) {
            return api_.CreateIoBinding(session_.get(), made);
        });
        for (std::size_t index = 0; index < owned.size(); ++index) {
            library_.check(api_.BindInput(binding.get(), input_words_[index], owned[index].get()));
        }
        for (const char* word : output_words_) {
            library_.check(api_.BindOutputToDevice(binding.get(), word, on_device_.get()));
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
        if (count != output_words_.size()) {
            throw Error("onnxruntime failed: it gave " + std::to_string(count) + " outputs.");
        }
        return tensors(found, given, std::vector<std::optional<std::size_t>>(count));
    } catch (const OrtFailure& err) {
        throw Error(std::string("onnxruntime failed: ") + err.what());
    }
}

}  // namespace attnport::reader

#endif
