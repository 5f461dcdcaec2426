#if defined(ATTNPORT_WITH_OPENVINO)

#include "openvino_request.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include <attnport/error.hpp>

#include "memory.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

/// The plugin's own words. It has no float16 on CPU. bf16: an fp32 graph that the plugin computes in bfloat16.
struct Precision {
    const char* plan;
    const char* word;
};
constexpr std::array<Precision, 6> precisions{{{"fp32", "f32"}, {"bf16", "bf16"}, {"int8", "f32"},
                                               {"int8_bf16", "bf16"}, {"int4", "f32"}, {"int4_bf16", "bf16"}}};

struct OvType {
    ov::element::Type_t type;
    DType dtype;
};
constexpr std::array<OvType, 7> ov_types{{
    {ov::element::Type_t::f32, DType::Float32},
    {ov::element::Type_t::f16, DType::Float16},
    {ov::element::Type_t::f64, DType::Float64},
    {ov::element::Type_t::bf16, DType::BFloat16},
    {ov::element::Type_t::i32, DType::Int32},
    {ov::element::Type_t::i64, DType::Int64},
    {ov::element::Type_t::boolean, DType::Bool},
}};

DType dtype_of(const ov::element::Type& type) {
    for (const auto& known : ov_types) {
        if (type == known.type) return known.dtype;
    }
    throw Error("openvino gave an output of element type " + type.get_type_name() + ", which no bundle has.");
}

Shape shape_of(const ov::Tensor& tensor) {
    Shape found;
    for (const auto size : tensor.get_shape()) found.push_back(static_cast<std::int64_t>(size));
    return found;
}

/// The line that says why: those before it name the plugin's own source files.
std::string reason(const std::string& text) {
    constexpr std::string_view source = "Exception from ";
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const bool blank = line.find_first_not_of(" \t\r") == std::string::npos;
        if (!blank && line.compare(0, source.size(), source) != 0) return escaped(line);
    }
    return escaped(text.substr(0, text.find('\n')));
}

/// The plugin would silently take the lower half of an integer that does not fit 32 bits.
void check_integers(const Input& input) {
    if (input.dtype() != DType::Int64 || elements(input.shape()) == 0) return;
    using Small = std::numeric_limits<std::int32_t>;
    const auto* values = static_cast<const std::int64_t*>(input.data());
    const auto [least, most] = std::minmax_element(values, values + elements(input.shape()));
    if (*least >= Small::min() && *most <= Small::max()) return;
    throw FeedError("input '" + std::string(input.name()) + "': got values " + std::to_string(*least) + " to " +
                    std::to_string(*most) + "; OpenVINO computes int64 in 32 bits, from " +
                    std::to_string(Small::min()) + " to " + std::to_string(Small::max()) + ".");
}

/// The ports of these names.
std::vector<ov::Output<const ov::Node>> named(const std::vector<ov::Output<const ov::Node>>& ports,
                                              const std::vector<std::string>& names) {
    std::vector<ov::Output<const ov::Node>> found;
    for (const auto& called : names) {
        const auto at = std::find_if(ports.begin(), ports.end(), [&](const ov::Output<const ov::Node>& port) {
            return port.get_names().count(called) != 0;
        });
        if (at != ports.end()) found.push_back(*at);
    }
    return found;
}

}  // namespace

std::string precision_of(const std::string& plan) {
    const auto* found = std::find_if(precisions.begin(), precisions.end(),
                                     [&](const Precision& known) { return plan == known.plan; });
    if (found == precisions.end()) {
        throw RuntimeMissing("openvino computes in fp32 or bf16 or int8 or int8_bf16 or int4 or int4_bf16 on CPU; " +
                             plan + " was asked for.");
    }
    return found->word;
}

ov::element::Type_t ov_type(DType dtype) {
    for (const auto& known : ov_types) {
        if (known.dtype == dtype) return known.type;
    }
    return ov::element::Type_t::dynamic;
}

std::string word_of(const ov::element::Type& type) {
    for (const auto& known : ov_types) {
        if (type == known.type) return std::string(name(known.dtype));
    }
    return type.get_type_name();
}

// A tensor of no elements may come without memory, which OpenVINO refuses.
ov::Tensor viewed(const Input& input) {
    ov::Shape shape;
    for (const auto size : input.shape()) shape.push_back(static_cast<std::size_t>(size));
    const ov::element::Type type = ov_type(input.dtype());
    auto* data = const_cast<void*>(input.data());  // it is only read
    return data == nullptr ? ov::Tensor(type, shape) : ov::Tensor(type, shape, data);
}

ov::CompiledModel compiled(ov::Core& core, const std::shared_ptr<ov::Model>& graph, const std::string& plan,
                           int threads, const std::string& where, const ov::AnyMap& further) {
    const std::string wanted = precision_of(plan);
    // Left alone, the plugin computes an fp32 graph in bf16 where the CPU can.
    ov::AnyMap settings{{"INFERENCE_PRECISION_HINT", wanted}, {"PERFORMANCE_HINT", "LATENCY"}};
    settings.insert(further.begin(), further.end());
    if (threads != 0) settings["INFERENCE_NUM_THREADS"] = threads;
    ov::CompiledModel made;
    try {
        made = core.compile_model(graph, "CPU", settings);
    } catch (const std::exception& err) {
        throw Error(where + ": OpenVINO cannot compile it: " + reason(err.what()));
    }
    const std::string precision = made.get_property(ov::hint::inference_precision).get_type_name();
    const std::vector<std::string> devices = made.get_property(ov::execution_devices);
    if (precision != wanted || devices != std::vector<std::string>{"CPU"}) {
        throw RuntimeMissing("OpenVINO was asked for " + wanted + " on CPU; it runs " + precision + " on " +
                             joined(devices) + ". This CPU may lack bfloat16 instructions.");
    }
    return made;
}

OpenVinoRequest::OpenVinoRequest(ov::CompiledModel& made, const std::vector<std::string>& inputs,
                                 std::vector<std::string> outputs)
    : request_(made.create_infer_request()),
      taken_(named(made.inputs(), inputs)),
      given_(named(made.outputs(), outputs)),
      output_names_(std::move(outputs)) {
    for (const auto& port : taken_) own_.push_back(request_.get_tensor(port));
}

// Inputs are not copied. Python's reader copies them, since OpenVINO 2026.4 kept the address of a shared array there
// and crashed when that was freed and another request of the model ran. A request here forgets the
// memory before the call is over. Tried with 2026.4.1: thousands of calls of changing shapes, on graphs that pass their
// inputs on, with the pages of each call taken away behind it; none was touched again.
void OpenVinoRequest::take(const std::vector<Input>& given) {
    for (std::size_t index = 0; index < given.size(); ++index) {
        check_integers(given[index]);
        request_.set_tensor(taken_[index], viewed(given[index]));
    }
}

void OpenVinoRequest::forget() noexcept {
    for (std::size_t index = 0; index < taken_.size(); ++index) {
        try {
            request_.set_tensor(taken_[index], own_[index]);
        } catch (const std::exception&) {
            // It has had this very tensor before. A call that fails here leaves an address that the next call replaces.
            continue;
        }
    }
}

std::vector<Tensor> OpenVinoRequest::run(const std::vector<Input>& given) {
    if (given.size() != taken_.size()) {
        throw FeedError("got " + std::to_string(given.size()) + " inputs; expected " +
                        std::to_string(taken_.size()) + ".");
    }
    struct Forgotten {
        OpenVinoRequest& request;
        ~Forgotten() { request.forget(); }
    };
    try {
        const Forgotten behind{*this};
        take(given);
        request_.infer();
        std::vector<Tensor> found;
        found.reserve(given_.size());
        for (std::size_t index = 0; index < given_.size(); ++index) {
            const ov::Tensor tensor = request_.get_tensor(given_[index]);
            auto memory = allocate(tensor.get_byte_size());
            if (tensor.get_byte_size() != 0) std::memcpy(memory.get(), tensor.data(), tensor.get_byte_size());
            found.emplace_back(output_names_[index], dtype_of(tensor.get_element_type()),
                               shape_of(tensor), std::move(memory));
        }
        return found;
    } catch (const Error&) {
        throw;
    } catch (const std::exception& err) {
        throw Error("openvino failed: " + escaped(err.what()));
    }
}

}  // namespace attnport::reader

#endif
