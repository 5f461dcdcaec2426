// A form on OpenVINO's CPU plugin, in the precision of its plan and no other; and a decoder's caches as states of the
// model, which OpenVINO then adds to in place.
#include <attnport/error.hpp>

#include "runtimes/session.hpp"

#if !defined(ATTNPORT_WITH_OPENVINO)

namespace attnport::reader {

std::unique_ptr<Session> open_openvino(const std::filesystem::path&, const Manifest&, const Form&, const Options&) {
    throw RuntimeMissing("this reader was built without OpenVINO; set OpenVINO_DIR in CMake to the folder of its "
                         "OpenVINOConfig.cmake.");
}

}  // namespace attnport::reader

#else

#if defined(__linux__)
#include <csignal>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include <openvino/op/assign.hpp>
#include <openvino/op/concat.hpp>
#include <openvino/op/constant.hpp>
#include <openvino/op/gather.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/op/read_value.hpp>
#include <openvino/op/result.hpp>
#include <openvino/op/util/variable.hpp>
#include <openvino/openvino.hpp>

#include "format/text.hpp"
#include "run/arrays.hpp"

namespace attnport::reader {
namespace {

/// Gives the calling thread back, at the end, the signal stack that it has now; does nothing but on Linux.
///
/// OpenVINO's CPU plugin gives the thread that compiles a model a signal stack of the model's own, and takes it back
/// when the model goes. Two models that do not go in reverse order leave the thread with a stack that is freed: the next
/// signal that asks for that stack is then a segmentation fault (OpenVINO 2026.4.1, seen in gdb).
class SignalStackKept {
public:
    SignalStackKept() {
#if defined(__linux__)
        known_ = sigaltstack(nullptr, &before_) == 0;
#endif
    }
    SignalStackKept(const SignalStackKept&) = delete;
    SignalStackKept& operator=(const SignalStackKept&) = delete;
    ~SignalStackKept() {
#if defined(__linux__)
        if (!known_) return;
        before_.ss_flags &= SS_DISABLE;
        sigaltstack(&before_, nullptr);
#endif
    }

private:
#if defined(__linux__)
    stack_t before_{};
    bool known_ = false;
#endif
};

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

/// The plugin's word for the precision of a plan. Throws RuntimeMissing: there is none.
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

/// Our word for an element type, which may be one that no bundle has.
std::string word_of(const ov::element::Type& type) {
    for (const auto& known : ov_types) {
        if (type == known.type) return std::string(name(known.dtype));
    }
    return type.get_type_name();
}

/// A view of a tensor's memory.
// A tensor of no elements may come without memory, which OpenVINO refuses.
ov::Tensor viewed(const Input& input) {
    ov::Shape shape;
    for (const auto size : input.shape()) shape.push_back(static_cast<std::size_t>(size));
    const ov::element::Type type = ov_type(input.dtype());
    auto* data = const_cast<void*>(input.data());  // it is only read
    return data == nullptr ? ov::Tensor(type, shape) : ov::Tensor(type, shape, data);
}

/// Compiles a graph for the CPU and reads back what was really set.
///
/// `threads`: 0 = the plugin's own choice. `where`: the file, for messages. `further`: more of the plugin's settings.
/// Throws RuntimeMissing: the CPU does not compute in the plan's precision; Error: OpenVINO refuses the graph.
ov::CompiledModel compile(ov::Core& core, const std::shared_ptr<ov::Model>& graph, const std::string& plan, int threads,
                          const std::string& where, const ov::AnyMap& further = {}) {
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

/// A request of a compiled model. One call at a time.
class OpenVinoRequest {
public:
    /// Inputs and outputs by name; those that the model lacks are left out.
    OpenVinoRequest(ov::CompiledModel& made, const std::vector<std::string>& inputs, std::vector<std::string> outputs)
        : request_(made.create_infer_request()),
          taken_(named(made.inputs(), inputs)),
          given_(named(made.outputs(), outputs)),
          output_names_(std::move(outputs)) {
        for (const auto& port : taken_) own_.push_back(request_.get_tensor(port));
    }

    /// Runs inputs, all of them and in the order of their names; gives copies of the outputs in theirs.
    [[nodiscard]] std::vector<Tensor> run(const std::vector<Input>& given) {
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
            for (std::size_t index = 0; index < given_.size(); ++index) {
                const ov::Tensor tensor = request_.get_tensor(given_[index]);
                auto memory = allocate(tensor.get_byte_size());
                if (tensor.get_byte_size() != 0) std::memcpy(memory.get(), tensor.data(), tensor.get_byte_size());
                found.emplace_back(output_names_[index], dtype_of(tensor.get_element_type()), shape_of(tensor),
                                   std::move(memory));
            }
            return found;
        } catch (const Error&) {
            throw;
        } catch (const std::exception& err) {
            throw Error("openvino failed: " + escaped(err.what()));
        }
    }

    [[nodiscard]] ov::InferRequest& request() noexcept { return request_; }

private:
    // Inputs are not copied. Python's reader copies them, since OpenVINO 2026.4 kept the address of a shared array there
    // and crashed when that was freed and another request of the model ran. A request here forgets the memory before the
    // call is over. Tried with 2026.4.1: thousands of calls of changing shapes, on graphs that pass their inputs on, with
    // the pages of each call taken away behind it; none was touched again.
    void take(const std::vector<Input>& given) {
        for (std::size_t index = 0; index < given.size(); ++index) {
            check_integers(given[index]);
            request_.set_tensor(taken_[index], viewed(given[index]));
        }
    }

    /// Gives the request its own memory again, in place of the caller's.
    void forget() noexcept {
        for (std::size_t index = 0; index < taken_.size(); ++index) {
            try {
                request_.set_tensor(taken_[index], own_[index]);
            } catch (const std::exception&) {
                // It has had this very tensor before. A call that fails here leaves an address that the next one replaces.
                continue;
            }
        }
    }

    using Ports = std::vector<ov::Output<const ov::Node>>;
    ov::InferRequest request_;
    Ports taken_;
    Ports given_;
    std::vector<ov::Tensor> own_;  ///< what the request has between calls, in the order of `taken_`
    std::vector<std::string> output_names_;
};

// A cache, an input and the output that follows it, becomes a variable of the model: it is read, its rows are put into
// their order by the input `beam_idx`, and what follows is assigned. The CPU plugin has a kernel of attention for this
// pattern, which keeps the keys and values of earlier tokens where they are.

/// The name that the plugin's own models have for it.
constexpr const char* rows_name = "beam_idx";

template <class Kind> bool is(const ov::Input<ov::Node>& user) { return ov::is_type<Kind>(user.get_node()); }

/// Whether an input is put before something, and both together are an output.
bool has_caches(const ov::Model& graph) {
    for (const auto& node : graph.get_parameters()) {
        for (const auto& user : node->output(0).get_target_inputs()) {
            if (!is<ov::op::v0::Concat>(user)) continue;
            const auto ends = user.get_node()->output(0).get_target_inputs();
            if (std::any_of(ends.begin(), ends.end(), is<ov::op::v0::Result>)) return true;
        }
    }
    return false;
}

/// An input as a variable of the model that it is read from; gives the variable.
std::shared_ptr<ov::op::util::Variable> read_from_state(const std::shared_ptr<ov::Node>& cache,
                                                        const std::string& name, const ov::Output<ov::Node>& rows,
                                                        std::size_t batch_axis) {
    const ov::PartialShape shape = cache->get_output_partial_shape(0);
    const ov::element::Type type = cache->get_output_element_type(0);
    // What a variable begins with. It is never read: caches are given before the first token.
    ov::Shape sizes;
    for (const auto& size : shape) sizes.push_back(size.is_dynamic() ? 0 : static_cast<std::size_t>(size.get_length()));
    const auto begin = std::make_shared<ov::op::v0::Constant>(type, sizes, 0.0F);
    auto variable = std::make_shared<ov::op::util::Variable>(ov::op::util::VariableInfo{shape, type, name});
    const auto read = std::make_shared<ov::op::v6::ReadValue>(begin, variable);
    const auto axis = std::make_shared<ov::op::v0::Constant>(ov::element::i32, ov::Shape{},
                                                             static_cast<std::int32_t>(batch_axis));
    const auto ordered = std::make_shared<ov::op::v8::Gather>(read, rows, axis);
    for (auto user : cache->output(0).get_target_inputs()) user.replace_source_output(ordered->output(0));
    return variable;
}

/// The model with its caches as states; none where what follows a cache is not the whole cache, or one of several
/// results of an operator. `graph` is changed, and must not be used afterwards.
std::shared_ptr<ov::Model> with_states(ov::Model& graph, const DecoderFacts& facts) {
    if (!facts.returns_whole_caches) return nullptr;
    std::vector<ov::Output<ov::Node>> followers;
    for (const Cached& cache : facts.caches) {
        followers.push_back(graph.output(cache.output).get_node()->input_value(0));
        if (followers.back().get_node()->get_output_size() > 1) return nullptr;
    }
    const auto rows = std::make_shared<ov::op::v0::Parameter>(ov::element::i32, ov::PartialShape{-1});
    rows->output(0).set_names({rows_name});
    ov::SinkVector assigned;
    std::set<const ov::Node*> gone;
    for (std::size_t at = 0; at < facts.caches.size(); ++at) {
        const Cached& fact = facts.caches[at];
        const auto cache = graph.input(fact.spec->name).get_node_shared_ptr();
        const auto variable = read_from_state(cache, fact.spec->name, rows, facts.batch_axis(*fact.spec));
        assigned.push_back(std::make_shared<ov::op::v6::Assign>(followers[at], variable));
        gone.insert({cache.get(), graph.output(fact.output).get_node()});
    }
    ov::ResultVector kept;
    for (const auto& node : graph.get_results()) {
        if (gone.count(node.get()) == 0) kept.push_back(node);
    }
    ov::ParameterVector given;
    for (const auto& node : graph.get_parameters()) {
        if (gone.count(node.get()) == 0) given.push_back(node);
    }
    given.push_back(rows);
    return std::make_shared<ov::Model>(kept, assigned, given, graph.get_friendly_name());
}

/// The inputs of a step, but for the order of the rows.
std::vector<std::string> fed(const DecoderFacts& facts) {
    std::vector<std::string> names{facts.ids->name};
    for (const TensorSpec* const spec : {facts.mask, facts.window_mask, facts.positions}) {
        if (spec != nullptr) names.push_back(spec->name);
    }
    for (const TensorSpec* const spec : facts.context) names.push_back(spec->name);
    return names;
}

/// `Steps` of a compiled model with states.
class States final : public Steps {
public:
    /// All but `made` are kept by reference.
    States(ov::CompiledModel& made, std::mutex& lock, const DecoderFacts& facts)
        : facts_(facts), lock_(lock), names_(fed(facts)), request_(made, with_rows(names_), {facts.logits->name}) {}

    // The plugin copies a state that is set, so that the caches may go.
    void begin(std::vector<Tensor> caches) override {
        each_state([&](ov::VariableState& state, std::size_t at) { state.set_state(viewed(caches.at(at))); });
    }

    Outputs run(Inputs inputs) override {
        std::vector<Input> given;
        for (const std::string& called : names_) {
            given.push_back(*std::find_if(inputs.begin(), inputs.end(),
                                          [&](const Input& one) { return one.name() == called; }));
        }
        std::vector<std::int32_t> rows(static_cast<std::size_t>(given[0].shape()[0]));
        std::iota(rows.begin(), rows.end(), 0);
        given.emplace_back(rows_name, rows, Shape{static_cast<std::int64_t>(rows.size())});
        const std::lock_guard<std::mutex> held(lock_);
        return Outputs(request_.run(given));
    }

    void drop(std::int64_t count) override {
        each_state([&](ov::VariableState& state, std::size_t at) {
            const Cached& cache = facts_.caches[at];
            if (!cache.holds_window) return;
            const ov::Tensor whole = state.get_state();
            ov::Coordinate begin(whole.get_shape().size(), 0);
            begin[*cache.axis] = static_cast<std::size_t>(count);
            const ov::Tensor last(whole, begin, ov::Coordinate(whole.get_shape()));
            ov::Tensor alone(whole.get_element_type(), last.get_shape());
            last.copy_to(alone);
            state.set_state(alone);
        });
    }

private:
    static std::vector<std::string> with_rows(std::vector<std::string> names) {
        names.emplace_back(rows_name);
        return names;
    }

    /// Calls `change` with each state and the number of its cache.
    template <class Change> void each_state(const Change& change) {
        const std::lock_guard<std::mutex> held(lock_);
        try {
            for (ov::VariableState& state : request_.request().query_state()) {
                const auto cache = std::find_if(facts_.caches.begin(), facts_.caches.end(), [&](const Cached& one) {
                    return one.spec->name == state.get_name();
                });
                change(state, static_cast<std::size_t>(cache - facts_.caches.begin()));
            }
        } catch (const std::exception& err) {
            throw Error("openvino failed: " + escaped(err.what()));
        }
    }

    const DecoderFacts& facts_;
    std::mutex& lock_;
    std::vector<std::string> names_;
    OpenVinoRequest request_;
};

/// Makes the caches of a decoder's batches; the model with its caches as states is compiled with the first. Its calls
/// from several threads take turns.
class OpenVinoStates {
public:
    /// Keeps the graph if it has caches; it is used for nothing else. The others are as of `compile`.
    OpenVinoStates(ov::Core core, std::shared_ptr<ov::Model> graph, std::string plan, int threads, std::string where)
        : core_(std::move(core)),
          graph_(has_caches(*graph) ? std::move(graph) : nullptr),
          plan_(std::move(plan)),
          threads_(threads),
          where_(std::move(where)) {}

    /// The caches of one batch; null for a model whose caches cannot be states. Throws as `compile`.
    [[nodiscard]] std::unique_ptr<Steps> made(const DecoderFacts& facts) {
        const std::lock_guard<std::mutex> held(lock_);
        if (!made_) {
            const std::shared_ptr<ov::Model> graph = std::exchange(graph_, nullptr);
            const std::shared_ptr<ov::Model> changed = graph == nullptr ? nullptr : with_states(*graph, facts);
            if (changed == nullptr) return nullptr;
            const SignalStackKept kept;
            try {
                // The plugin's own choice is 8 bits.
                made_ = compile(core_, changed, plan_, threads_, where_, {{"KV_CACHE_PRECISION", precision_of(plan_)}});
            } catch (const Error&) {
                // 2026.4 finds a loop where the mask reads the length of a cache that it has fused.
                return nullptr;
            }
        }
        return std::make_unique<States>(made_, lock_, facts);
    }

private:
    ov::Core core_;
    std::shared_ptr<ov::Model> graph_;
    std::string plan_;
    int threads_;
    std::string where_;
    ov::CompiledModel made_;
    std::mutex lock_;
};

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

/// A compiled model. Calls from several threads take turns.
class OpenVinoSession final : public Session {
public:
    OpenVinoSession(const std::filesystem::path& path, const Manifest& manifest, const Form& form, int threads) {
        std::shared_ptr<ov::Model> graph;
        try {
            core_.set_property(ov::enable_mmap(may_map(manifest, form)));
            graph = core_.read_model(path.string());
        } catch (const std::exception& err) {
            throw Error(path.string() + " cannot be opened: " + escaped(err.what()));
        }
        made_ = compile(core_, graph, form.plan, threads, path.string());
        const std::string build = ov::get_openvino_version().buildNumber;
        provider = "OpenVINO CPU";
        version = build.substr(0, build.find('-'));
        machine = this_cpu();
        for (const auto& port : made_.inputs()) inputs.push_back(described(port, form));
        for (const auto& port : made_.outputs()) outputs.push_back(described(port, form));
        const IO& io = manifest.io;
        request_ = std::make_unique<OpenVinoRequest>(made_, names_of(io.inputs), names_of(io.outputs));
        states_ = std::make_unique<OpenVinoStates>(core_, std::move(graph), form.plan, threads, path.string());
    }
    OpenVinoSession(const OpenVinoSession&) = delete;
    OpenVinoSession& operator=(const OpenVinoSession&) = delete;
    // The plugin gives its signal stack back here, to whichever thread closes the model.
    ~OpenVinoSession() override {
        const SignalStackKept kept;
        states_.reset();
        request_.reset();
        made_ = {};
    }

    std::vector<Tensor> run(const std::vector<Input>& given) override {
        const std::lock_guard<std::mutex> held(lock_);
        return request_->run(given);
    }
    /// The CPU is where this runtime computes.
    std::vector<Tensor> run_device(const std::vector<Input>& given, const std::vector<bool>& /*stays*/) override {
        return run(given);
    }
    std::unique_ptr<Steps> new_steps(const DecoderFacts& facts) override { return states_->made(facts); }

private:
    ov::Core core_;
    ov::CompiledModel made_;
    std::unique_ptr<OpenVinoRequest> request_;
    std::unique_ptr<OpenVinoStates> states_;
    std::mutex lock_;
};

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
