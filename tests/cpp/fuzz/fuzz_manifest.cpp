// Any bytes as `bundle.json`: refused with an Error, or a manifest that keeps what FORMAT.md promises.
// https://llvm.org/docs/LibFuzzer.html
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <attnport/error.hpp>

#include "format/manifest.hpp"
#include "format/text.hpp"

namespace {

namespace reader = attnport::reader;

void require(bool kept, const char* promise, const std::string& name) {
    if (kept) return;
    static_cast<void>(std::fprintf(stderr, "%s: %s\n", promise, reader::shown(name).c_str()));
    std::abort();
}

void check_name(const std::string& name) {
    std::string_view rest = name;
    for (;;) {
        const std::size_t slash = rest.find('/');
        const std::string_view part = rest.substr(0, slash);
        require(!part.empty() && part != "." && part != "..", "a name leaves the folder", name);
        if (slash == std::string_view::npos) return;
        rest.remove_prefix(slash + 1);
    }
}

void check(const reader::Manifest& manifest) {
    require(reader::is_printable(manifest.name), "text that cannot be printed", manifest.name);
    require(!manifest.forms.empty() && manifest.order.size() == manifest.forms.size(), "no order of the forms", "");
    require(manifest.files.count(manifest.goldens.file) != 0, "not among the files", manifest.goldens.file);
    for (const auto& [name, file] : manifest.files) {
        check_name(name);
        require(file.bytes >= 0 && file.sha256.size() == 64, "no size or digest", name);
    }
    for (const auto& name : manifest.order) {
        require(manifest.forms.count(name) != 0, "no such form", name);
        const auto& form = manifest.form(name);
        require(manifest.files.count(form.file) != 0, "not among the files", form.file);
        for (const auto& weights : form.external) {
            require(manifest.files.count(weights) != 0, "not among the files", weights);
        }
        for (const auto& spec : manifest.io.inputs) require(form.dtypes.count(spec.name) != 0, "no dtype", spec.name);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    try {
        check(reader::from_bytes({reinterpret_cast<const char*>(data), bytes}, "bundle.json"));
    } catch (const attnport::Error&) {
        return 0;
    }
    return 0;
}
