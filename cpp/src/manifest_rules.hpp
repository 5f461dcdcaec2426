// The rules that the parts of a manifest keep, each by itself. Each throws std::invalid_argument.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "manifest.hpp"
#include "ordered.hpp"

namespace attnport::reader {

// What is checked while reading and not kept.
struct Ran {
    std::string device;
    std::string provider;
    std::string precision;
};

struct Measured {
    std::string case_;
    std::string output;
    double rms_error = 0;
    double rms_bound = 0;
    double max_error = 0;
    double max_bound = 0;
};

struct FusionItem {
    std::string attention;
    bool fused = false;
    std::optional<std::string> kernel;
    std::string reason;
};

struct Fusion {
    std::int64_t attentions = 0;
    std::int64_t fused = 0;
    std::optional<std::string> proved_by;
    std::vector<FusionItem> items;
};

struct Provenance {
    std::string source;
    std::vector<std::string> inputs;
    std::string code_sha256;
    std::string weights_sha256;
    std::int64_t opset = 0;
    std::vector<std::vector<std::string>> commands;
    Ordered<std::string> versions;
};

/// Words for one output of one case.
[[nodiscard]] std::string in_case(const std::string& case_, const std::string& output);

void check(const File& file);
void check(const Requires& requires_);
void check(const Measured& result);
void check(const Bound& bound);
void check(const Parity& parity, bool has_results);
void check(const Fusion& fusion);
void check(const Form& form);
void check(const Provenance& provenance);

}  // namespace attnport::reader
