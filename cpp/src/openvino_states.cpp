#if defined(ATTNPORT_WITH_OPENVINO)

#include "openvino_states.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <openvino/op/assign.hpp>
#include <openvino/op/concat.hpp>
#include <openvino/op/constant.hpp>
#include <openvino/op/gather.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/op/read_value.hpp>
#include <openvino/op/result.hpp>
#include <openvino/op/util/variable.hpp>

#include <attnport/error.hpp>

#include "openvino_request.hpp"
#include "signal_stack.hpp"

namespace attnport::reader {
namespace {

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
std::shared_ptr<ov::Model> with_states(ov::Model& graph, const Roles& roles) {
    if (!roles.grown) return nullptr;
    std::vector<ov::Output<ov::Node>> followers;
    for (const Cached& cache : roles.caches) {
        followers.push_back(graph.output(cache.output).get_node()->input_value(0));
        if (followers.back().get_node()->get_output_size() > 1) return nullptr;
    }
    const auto rows = std::make_shared<ov::op::v0::Parameter>(ov::element::i32, ov::PartialShape{-1});
    rows->output(0).set_names({rows_name});
    ov::SinkVector assigned;
    std::set<const ov::Node*> gone;
    for (std::size_t at = 0; at < roles.caches.size(); ++at) {
        const Cached& role = roles.caches[at];
        const auto cache = graph.input(role.spec->name).get_node_shared_ptr();
        const auto variable = read_from_state(cache, role.spec->name, rows, roles.batch_axis(*role.spec));
        assigned.push_back(std::make_shared<ov::op::v6::Assign>(followers[at], variable));
        gone.insert({cache.get(), graph.output(role.output).get_node()});
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
std::vector<std::string> fed(const Roles& roles) {
    std::vector<std::string> names{roles.ids->name};
    const TensorSpec* const near = roles.kept ? roles.kept->mask : nullptr;
    for (const TensorSpec* const spec : {roles.mask, near == roles.mask ? nullptr : near, roles.positions}) {
        if (spec != nullptr) names.push_back(spec->name);
    }
    for (const TensorSpec* const spec : roles.context) names.push_back(spec->name);
    return names;
}

/// `Steps` of a compiled model with states.
class States final : public Steps {
public:
    /// All but `made` are kept by reference.
    States(ov::CompiledModel& made, std::mutex& lock, const Roles& roles)
        : roles_(roles), lock_(lock), names_(fed(roles)), request_(made, with_rows(names_), {roles.logits->name}) {}

    // The plugin copies a state that is set, so that the caches may go.
    void begin(std::vector<Tensor> caches) override {
        const std::lock_guard<std::mutex> held(lock_);
        request_.request().reset_state();
        for (ov::VariableState& state : request_.request().query_state()) {
            const auto role = std::find_if(roles_.caches.begin(), roles_.caches.end(), [&](const Cached& one) {
                return one.spec->name == state.get_name();
            });
            state.set_state(viewed(caches.at(static_cast<std::size_t>(role - roles_.caches.begin()))));
        }
    }

    Outputs run(Inputs inputs) override {
        std::vector<Input> given;
        for (const std::string& called : names_) {
            given.push_back(*std::find_if(inputs.begin(), inputs.end(),
                                          [&](const Input& one) { return one.name() == called; }));
        }
        std::vector<std::int32_t> rows;
        for (const std::size_t row : rows_) rows.push_back(static_cast<std::int32_t>(row));
        if (rows.empty()) {
            rows.resize(static_cast<std::size_t>(given[0].shape()[0]));
            std::iota(rows.begin(), rows.end(), 0);
        }
        given.emplace_back(rows_name, rows, Shape{static_cast<std::int64_t>(rows.size())});
        const std::lock_guard<std::mutex> held(lock_);
        Outputs outputs(request_.run(given));
        rows_.clear();
        return outputs;
    }

    /// They are put into their order with the next token.
    void take(const std::vector<std::size_t>& texts) override {
        std::vector<std::size_t> rows;
        rows.reserve(texts.size());
        for (const std::size_t text : texts) rows.push_back(rows_.empty() ? text : rows_.at(text));
        rows_ = std::move(rows);
    }

    void drop(std::int64_t count) override {
        const std::lock_guard<std::mutex> held(lock_);
        for (ov::VariableState& state : request_.request().query_state()) {
            const auto role = std::find_if(roles_.caches.begin(), roles_.caches.end(), [&](const Cached& one) {
                return one.spec->name == state.get_name();
            });
            if (!roles_.holds_last(*role)) continue;
            const ov::Tensor whole = state.get_state();
            ov::Coordinate begin(whole.get_shape().size(), 0);
            begin[*role->axis] = static_cast<std::size_t>(count);
            const ov::Tensor last(whole, begin, ov::Coordinate(whole.get_shape()));
            ov::Tensor alone(whole.get_element_type(), last.get_shape());
            last.copy_to(alone);
            state.set_state(alone);
        }
    }

private:
    static std::vector<std::string> with_rows(std::vector<std::string> names) {
        names.emplace_back(rows_name);
        return names;
    }

    const Roles& roles_;
    std::mutex& lock_;
    std::vector<std::string> names_;
    OpenVinoRequest request_;
    std::vector<std::size_t> rows_;  ///< the texts that the next token goes on with; none = as they are
};

}  // namespace

OpenVinoStates::OpenVinoStates(ov::Core core, std::shared_ptr<ov::Model> graph, std::string plan, int threads,
                               std::string where)
    : core_(std::move(core)),
      graph_(has_caches(*graph) ? std::move(graph) : nullptr),
      plan_(std::move(plan)),
      threads_(threads),
      where_(std::move(where)) {}

std::unique_ptr<Steps> OpenVinoStates::made(const Roles& roles) {
    const std::lock_guard<std::mutex> held(lock_);
    if (!made_) {
        const std::shared_ptr<ov::Model> graph = std::exchange(graph_, nullptr);
        const std::shared_ptr<ov::Model> changed = graph == nullptr ? nullptr : with_states(*graph, roles);
        if (changed == nullptr) return nullptr;
        const SignalStackKept kept;
        try {
            // The plugin's own choice is 8 bits.
            made_ = compiled(core_, changed, plan_, threads_, where_, {{"KV_CACHE_PRECISION", precision_of(plan_)}});
        } catch (const Error&) {
            // 2026.4 finds a loop where the mask reads the length of a cache that it has fused.
            return nullptr;
        }
    }
    return std::make_unique<States>(made_, lock_, roles);
}

void OpenVinoStates::give_back() {
    const std::lock_guard<std::mutex> held(lock_);
    if (made_) made_.release_memory();
}

}  // namespace attnport::reader

#endif
