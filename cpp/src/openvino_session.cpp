// A form on OpenVINO's CPU plugin, in the precision of its plan and no other.
#include "opening.hpp"

#include <attnport/error.hpp>

#if !defined(ATTNPORT_WITH_OPENVINO)

namespace attnport::reader {

std::unique_ptr<Session> open_openvino(const std::filesystem::path&, const Manifest&, const Form&, const Options&) {
    throw RuntimeMissing("this reader was built without OpenVINO; set OpenVINO_DIR in CMake to the folder of its "
                         "OpenVINOConfig.cmake.");
}

}  // namespace attnport::reader

#else

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <openvino/openvino.hpp>

#include "memory.hpp"
#include "signal_stack.hpp"
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

ov::element::Type_t ov_type(DType dtype) {
    for (const auto& known : ov_types) {
        if (known.dtype == dtype) return known.type;
    }
    return ov::element::Type_t::dynamic;
}

DType dtype_of(const ov::element::Type& type) {
    for (const auto& known : ov_types) {
        if (type == known.type) return known.dtype;
    }
    throw Error("openvino gave an output of element type " + type.get_type_name() + ", which no bundle has.");
}

std::string word_of(const ov::element::Type& type) {
    for (const auto& known : ov_types) {
        if (type == known.type) return std::string(name(known.dtype));
    }
    return type.get_type_name();
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

/// Compiles a graph for the CPU and reads back what was really set.
ov::CompiledModel compiled(ov::Core& core, const std::shared_ptr<ov::Model>& graph, const std::string& plan,
                           int threads, const std::string& where) {
    const auto* found = std::find_if(precisions.begin(), precisions.end(),
                                     [&](const Precision& known) { return plan == known.plan; });
    if (found == precisions.end()) {
        throw RuntimeMissing("openvino computes in fp32 or bf16 or int8 or int8_bf16 or int4 or int4_bf16 on CPU; " + plan + " was asked for.");
    }
    const std::string wanted = found->word;
    // Left alone, the plugin computes an fp32 graph in bf16 where the CPU can.
    ov::AnyMap settings{{"INFERENCE_PRECISION_HINT", wanted}, {"PERFORMANCE_HINT", "LATENCY"}};
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

/// OpenVINO may know a tensor by several names; the contract's is the one that counts.
std::string name_of(const ov::Output<const ov::Node>& port, const Form& form) {
    const std::set<std::string> names(port.get_names().begin(), port.get_names().end());
    for (const auto& called : names) {
        if (form.dtypes.count(called) != 0) return called;
    }
    return names.empty() ? "" : *names.begin();
}

Port described(const ov::Output<const ov::Node>& port, const Form& form) {
    Port found{name_of(port, form), word_of(port.get_element_type()), std::nullopt};
    const ov::PartialShape& shape = port.get_partial_shape();
    if (shape.rank().is_dynamic()) return found;
    found.shape.emplace();
    for (const auto& size : shape) {
        found.shape->push_back(size.is_dynamic() ? std::nullopt : std::optional<std::int64_t>(size.get_length()));
    }
    return found;
}

using Ports = std::vector<ov::Output<const ov::Node>>;

/// The ports in the contract's order; one that is not there is found to be missing when the ports are compared.
Ports in_order(const Ports& ports, const std::vector<TensorSpec>& specs, const Form& form) {
    Ports found;
    for (const auto& spec : specs) {
        const auto at = std::find_if(ports.begin(), ports.end(), [&](const ov::Output<const ov::Node>& port) {
            return name_of(port, form) == spec.name;
        });
        if (at != ports.end()) found.push_back(*at);
    }
    return found;
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

/// A compiled model. Calls from several threads take turns.
class OpenVinoSession final : public Session {
public:
    OpenVinoSession(const std::filesystem::path& path, const Manifest& manifest, const Form& form, int threads);
    OpenVinoSession(const OpenVinoSession&) = delete;
    OpenVinoSession& operator=(const OpenVinoSession&) = delete;
    ~OpenVinoSession() override;

    std::vector<Tensor> run(const std::vector<Input>& given) override;
    /// The CPU is where this runtime computes.
    std::vector<Tensor> run_device(const std::vector<Input>& given) override { return run(given); }
    bool give_back() override;

private:
    void take(const std::vector<Input>& given);
    /// Gives the request its own memory again, in place of the caller's.
    void forget() noexcept;

    ov::Core core_;
    ov::CompiledModel made_;
    ov::InferRequest request_;
    Ports taken_;
    Ports given_;
    std::vector<ov::Tensor> own_;  ///< what the request has between calls, in the order of `taken_`
    std::vector<std::string> output_names_;
    std::mutex lock_;
};

OpenVinoSession::OpenVinoSession(const std::filesystem::path& path, const Manifest& manifest, const Form& form,
                                 int threads) {
    std::shared_ptr<ov::Model> graph;
    const IO& io = manifest.io;
    try {
        core_.set_property(ov::enable_mmap(may_map(manifest, form)));
        graph = core_.read_model(path.string());
    } catch (const std::exception& err) {
        throw Error(path.string() + " cannot be opened: " + escaped(err.what()));
    }
    made_ = compiled(core_, graph, form.plan, threads, path.string());
    const std::string build = ov::get_openvino_version().buildNumber;
    provider = "OpenVINO CPU";
    version = build.substr(0, build.find('-'));
    machine = this_cpu();
    for (const auto& port : made_.inputs()) inputs.push_back(described(port, form));
    for (const auto& port : made_.outputs()) outputs.push_back(described(port, form));
    taken_ = in_order(made_.inputs(), io.inputs, form);
    given_ = in_order(made_.outputs(), io.outputs, form);
    output_names_ = names_of(io.outputs);
    request_ = made_.create_infer_request();
    for (const auto& port : taken_) own_.push_back(request_.get_tensor(port));
}

// The plugin gives its signal stack back here, to whichever thread closes the model.
OpenVinoSession::~OpenVinoSession() {
    const SignalStackKept kept;
    own_.clear();
    request_ = {};
    made_ = {};
}

// Inputs are not copied. Python's reader copies them, since OpenVINO 2026.4 kept the address of a shared array there
// and crashed when that was freed and another request of the model ran. A session has one request, which forgets the
// memory before the call is over. Tried with 2026.4.1: thousands of calls of changing shapes, on graphs that pass their
// inputs on, with the pages of each call taken away behind it; none was touched again.
void OpenVinoSession::take(const std::vector<Input>& given) {
    for (std::size_t index = 0; index < given.size(); ++index) {
        const Input& input = given[index];
        check_integers(input);
        ov::Shape shape;
        for (const auto size : input.shape()) shape.push_back(static_cast<std::size_t>(size));
        const ov::element::Type type = ov_type(input.dtype());
        // Inputs are only read; a tensor of no elements may come without memory, which OpenVINO refuses.
        auto* data = const_cast<void*>(input.data());
        request_.set_tensor(taken_[index], data == nullptr ? ov::Tensor(type, shape) : ov::Tensor(type, shape, data));
    }
}

/// Frees the pool and what was compiled for sizes; the C library has to be asked to pass it on.
bool OpenVinoSession::give_back() {
    const std::lock_guard<std::mutex> held(lock_);
    made_.release_memory();
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
    return true;
}

void OpenVinoSession::forget() noexcept {
    for (std::size_t index = 0; index < taken_.size(); ++index) {
        try {
            request_.set_tensor(taken_[index], own_[index]);
        } catch (const std::exception&) {
            // It has had this very tensor before. A call that fails here leaves an address that the next call replaces.
            continue;
        }
    }
}

std::vector<Tensor> OpenVinoSession::run(const std::vector<Input>& given) {
    const std::lock_guard<std::mutex> held(lock_);
    if (given.size() != taken_.size()) {
        throw FeedError("got " + std::to_string(given.size()) + " inputs; expected " +
                        std::to_string(taken_.size()) + ".");
    }
    struct Forgotten {
        OpenVinoSession& session;
        ~Forgotten() { session.forget(); }
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

}  // namespace

std::unique_ptr<Session> open_openvino(const std::filesystem::path& path, const Manifest& manifest, const Form& form,
                                       const Options& options) {
    const std::string build = ov::get_openvino_version().buildNumber;
    require_release("openvino", build, form.requires_, "build this reader with that release, by OpenVINO_DIR in CMake");
    // Around all of it: the plugin takes its signal stack back where a model that was compiled is refused, too.
    const SignalStackKept kept;
    try {
        return std::make_unique<OpenVinoSession>(path, manifest, form, options.threads);
    } catch (const Error&) {
        throw;
    } catch (const std::exception& err) {
        throw Error(path.string() + " cannot be opened: " + escaped(err.what()));
    }
}

}  // namespace attnport::reader

#endif
