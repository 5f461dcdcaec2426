// The whole check of a bundle: manifest, files, then the golden cases on every form that can run here.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <attnport/api.hpp>
#include <attnport/model.hpp>

namespace attnport {

/// One line of the report: what was checked, the verdict (PASS, FAIL or NOT_RUN), and the evidence.
struct Row {
    std::string check;
    std::string verdict;
    std::string detail;
};

/// What a check found. `exit_code`: 0, or that of the first thing that is wrong.
struct Report {
    std::vector<Row> rows;
    int exit_code = 0;
    bool unverified = false;
};

/// Checks a bundle. The model is opened only once every file is known to be the one that was bundled. Of the options
/// only threads, require_signature and onnxruntime count. Throws as Model.
[[nodiscard]] ATTNPORT_API Report selftest(const std::filesystem::path& folder, const Options& options = {});

}  // namespace attnport
