// Without these limits, a file of a few kilobytes keeps a runtime busy for hours or ends it by a stack overflow. Why they
// are what they are: structure.py.
#include "structure.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace attnport::reader {
namespace {

constexpr std::uint64_t max_nodes = 1'000'000;
constexpr int max_depth = 32;
constexpr std::size_t max_functions = 10'000;
constexpr std::uint64_t weight = 20;  // a nested graph, or a call of a function, costs what so many nodes do

void check_size(std::uint64_t nodes, int depth) {
    if (depth > max_depth) {
        throw std::invalid_argument("graphs or functions nested deeper than " + std::to_string(max_depth) +
                                    ", or functions that call themselves");
    }
    if (nodes > max_nodes) {
        throw std::invalid_argument("more than " + std::to_string(max_nodes) +
                                    " nodes with functions put in place of their calls; each call and each nested "
                                    "graph counts as " +
                                    std::to_string(weight));
    }
}

}  // namespace

void refuse_graph() { throw std::invalid_argument("a graph is handed to a function"); }

void Body::graph(int depth) {
    ++graphs_;
    own_.depth = std::max(own_.depth, depth);
    check_size(0, depth);
}

void Body::node(Name name, int depth, bool given) {
    if (std::get<0>(name) == "ai.onnx") std::get<0>(name).clear();
    Calls& calls = calls_[std::move(name)];
    ++calls.times;
    calls.deepest = std::max(calls.deepest, depth);
    calls.given = calls.given || given;
    ++own_.nodes;
    check_size(own_.nodes + weight * graphs_, 0);
}

// NOLINTNEXTLINE(misc-no-recursion): bounded by max_depth
Body::Size Body::expanded(std::map<Name, Body>& functions, int level) {
    if (!expanded_) {
        check_size(0, level);  // also what ends functions that call each other in a circle
        Size size{own_.nodes + weight * graphs_, own_.depth};
        for (const auto& [name, calls] : calls_) {
            const auto function = functions.find(name);
            if (function == functions.end()) continue;
            if (calls.given) refuse_graph();
            const Size inside = function->second.expanded(functions, level + 1);
            size.nodes += calls.times * (weight + inside.nodes);
            size.depth = std::max(size.depth, calls.deepest + 1 + inside.depth);
            check_size(size.nodes, size.depth);
        }
        expanded_ = size;
    }
    return *expanded_;
}

void Structure::add(Name name, Body function) {
    if (functions_.size() == max_functions) {
        throw std::invalid_argument("more than " + std::to_string(max_functions) + " functions");
    }
    // As a node's domain, see Body::node.
    if (std::get<0>(name) == "ai.onnx") std::get<0>(name).clear();
    if (!functions_.emplace(std::move(name), std::move(function)).second) {
        throw std::invalid_argument("two functions of one domain, name and overload");
    }
}

void Structure::check() {
    model_.expanded(functions_);
    for (auto& [name, function] : functions_) function.expanded(functions_);
}

}  // namespace attnport::reader
