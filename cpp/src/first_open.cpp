// The proof of a form that nobody ran on its device: the goldens, once on each device, at its first open there.
#include <attnport/error.hpp>

#include "goldens.hpp"

namespace attnport::reader {

namespace {

std::string file_of(const std::string& key) { return key + ".pass.json"; }

/// The whole of the file that says that the goldens passed for an entry; any other one is not believed.
std::string pass_of(const std::string& key) {
    return "{\"format\": \"attnport-first-open\", \"reader\": \"cpp\", \"entry\": \"" + key + "\"}\n";
}

}  // namespace

void prove(const std::filesystem::path& folder, const Manifest& manifest, const std::string& form, const Call& call,
           const std::string& provider, const std::string& version, const Machine& machine,
           const std::optional<Cache>& cache, bool record) {
    const std::string key = entry(manifest, form, provider, version, machine);
    if (cache && cache->read(file_of(key)) == pass_of(key)) return;
    std::string first = "there is no golden case";
    bool passed = false;  // and not true of a run that gave no result
    bool failed = false;
    Goldens(folder, manifest).check(manifest.form(form), call, [&](const Result& result) {
        if (result.passed) {
            passed = true;
        } else if (!failed) {
            failed = true;
            first = result.case_ + ", " + result.output + ": " + result.reason;
        }
    });
    if (failed || !passed) {
        throw NumbersOff(form + " does not pass the goldens on " + machine.device + ": " + first + ".");
    }
    // A proof that cannot be kept is made again next time.
    if (cache && record) static_cast<void>(cache->write(file_of(key), pass_of(key)));
}

}  // namespace attnport::reader
