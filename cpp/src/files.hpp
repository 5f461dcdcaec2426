// Every file of a bundle against the manifest: nothing changed, missing, added, linked or pointing elsewhere.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "manifest.hpp"

namespace attnport::reader {

inline constexpr std::size_t max_findings = 20;

/// One thing that is wrong with a bundle's files; `name` is relative to the folder, and printable.
struct Finding {
    std::string name;
    std::string problem;
};

/// What is wrong with the files of a bundle, at most `max_findings` things; empty = all is as it was bundled.
[[nodiscard]] std::vector<Finding> check_files(const std::filesystem::path& folder, const Manifest& manifest);

/// Throws IntegrityError for the first thing that `check_files` finds, and says how many there are.
void require_files(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace attnport::reader
