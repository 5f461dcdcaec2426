#include <attnport/selftest.hpp>

#include <optional>
#include <system_error>
#include <utility>

#include <attnport/error.hpp>

#include "format/files.hpp"
#include "format/signature.hpp"
#include "format/text.hpp"
#include "run/form.hpp"
#include "run/goldens.hpp"
#include "run/guarded.hpp"

namespace attnport {

namespace {

using reader::Goldens;
using reader::Manifest;
using reader::Result;

Row signature_row(const std::filesystem::path& folder, const std::string& fingerprint) {
    if (!fingerprint.empty()) return {"signature", "PASS", "ed25519 " + fingerprint};
    std::error_code error;
    const bool is_there = std::filesystem::exists(folder / std::string(reader::signature_name), error);
    return {"signature", "NOT_RUN", is_there ? "not checked: no --key" : "not signed"};
}

Row files_row(const Manifest& manifest) {
    double bytes = 0;
    for (const auto& [name, file] : manifest.files) bytes += static_cast<double>(file.bytes);
    return {"files", "PASS",
            std::to_string(manifest.files.size()) + " files, " + reader::fixed(bytes / 1e6, 1) +
                " MB, as they were bundled"};
}

std::string words(const Result& result) {
    if (!result.reason.empty()) return result.reason;
    return "max error " + reader::scientific(result.max_error.value_or(0), 1) + ", bound " +
           reader::scientific(result.max_bound, 1);
}

/// Rows as they come, and the exit code of the first that is wrong.
struct Found {
    std::vector<Row> rows;
    int exit_code = 0;
    bool ran = false;

    void add(Row row, int code) {
        if (exit_code == 0) exit_code = code;
        ran = ran || row.verdict != "NOT_RUN";
        rows.push_back(std::move(row));
    }
};

/// A row for a form, or for each of its golden cases where it can run.
void check_form(const std::filesystem::path& folder, const Manifest& manifest, const Goldens& goldens,
                const std::string& name, const Options& options, Found& found) {
    bool opened = false;
    try {
        const reader::OpenForm form(folder, manifest, name, options, std::nullopt);
        opened = true;
        const auto call = [&form](const Inputs& inputs) { return form.run(inputs); };
        goldens.check(manifest.form(name), call, [&](const Result& result) {
            const std::string check = name + " " + result.case_ + " " + result.output;
            found.add({check, result.passed ? "PASS" : "FAIL", words(result)}, result.passed ? 0 : 4);
        });
    } catch (const RuntimeMissing& err) {
        // Of a form that can be opened every case counts: what did not run is not taken for passed.
        found.add({name, "NOT_RUN", err.what()}, opened ? err.exit_code() : 0);
    } catch (const Error& err) {
        found.add({name, "FAIL", err.what()}, err.exit_code());
    }
}

/// The whole check; throws whatever comes.
Report checked(const std::filesystem::path& given, const Options& options) {
    const std::filesystem::path folder = reader::not_empty(given);
    const reader::Trusted trusted = reader::read_trusted(folder, options.require_signature);
    const Manifest& manifest = trusted.manifest;
    Report report;
    report.unverified = manifest.unverified;
    for (const reader::Finding& finding : reader::check_files(folder, manifest)) {
        report.rows.push_back({finding.name, "FAIL", finding.problem});
        report.exit_code = 6;
    }
    if (report.exit_code != 0) return report;
    report.rows = {signature_row(folder, trusted.fingerprint), files_row(manifest)};
    Found found;
    try {
        const Goldens goldens(folder, manifest);
        for (const std::string& name : manifest.order) check_form(folder, manifest, goldens, name, options, found);
    } catch (const IntegrityError& err) {
        found.add({manifest.goldens.file, "FAIL", err.what()}, err.exit_code());
    }
    report.rows.insert(report.rows.end(), found.rows.begin(), found.rows.end());
    report.exit_code = found.ran ? found.exit_code : 3;
    return report;
}

}  // namespace

Report selftest(const std::filesystem::path& folder, const Options& options) {
    return reader::guarded([&] { return checked(folder, options); });
}

}  // namespace attnport
