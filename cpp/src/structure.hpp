// How large a model becomes once a runtime has put functions in place of their calls, counted before it is built.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

namespace attnport::reader {

/// Domain, operator and overload, by which a node names what it calls.
using Name = std::tuple<std::string, std::string, std::string>;

/// How often a function repeats a graph that it is handed is not counted: throws std::invalid_argument.
[[noreturn]] void refuse_graph();

/// What stands in the model, or in one function. What is beyond a limit throws std::invalid_argument.
class Body {
public:
    /// Nested graphs so far.
    [[nodiscard]] std::uint64_t graphs() const noexcept { return graphs_; }

    /// Takes one more graph, inside `depth` others with itself counted.
    void graph(int depth);

    /// Takes one more node, inside `depth` nested graphs; `given`: it has a graph in an attribute.
    void node(Name name, int depth, bool given);

    struct Size {
        std::uint64_t nodes = 0;
        int depth = 0;
    };

    /// Nodes and depth with all functions in place of their calls.
    Size expanded(std::map<Name, Body>& functions, int level = 0);

private:
    struct Calls {
        std::uint64_t times = 0;
        int deepest = 0;
        bool given = false;
    };
    Size own_;
    std::uint64_t graphs_ = 0;
    std::map<Name, Calls> calls_;
    std::optional<Size> expanded_;
};

/// The bodies of a model: what stands in its graphs, and its functions.
class Structure {
public:
    [[nodiscard]] Body& model() noexcept { return model_; }

    /// Takes one more function. Throws std::invalid_argument for one that is there already, or is one too many.
    void add(Name name, Body function);

    /// Throws std::invalid_argument when the model is too large or too deep, or a function calls itself.
    void check();

private:
    Body model_;
    std::map<Name, Body> functions_;
};

}  // namespace attnport::reader
