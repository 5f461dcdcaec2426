// A form on OpenVINO's CPU plugin, in the precision of its plan and no other.
#include "opening.hpp"

#include <attnport/error.hpp>

#if !defined(ATTNPORT_WITH_OPENVINO)

namespace attnport::reader {

std::unique_ptr<Session> open_openvino(const std::filesystem::path&, const Manifest&, const Form&, const Options&) {
    throw RuntimeMissing("this reader was built without OpenVINO; set OpenVINO_DIR in CMake to the folder of its "
                         "OpenVINOConfig.cmake.");
}

}  // namespace attnport::reader

#else

#include <exception>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "openvino_request.hpp"
#include "openvino_states.hpp"
#include "signal_stack.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

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
    OpenVinoSession(const std::filesystem::path& path, const Manifest& manifest, const Form& form, int threads);
    OpenVinoSession(const OpenVinoSession&) = delete;
    OpenVinoSession& operator=(const OpenVinoSession&) = delete;
    ~OpenVinoSession() override;

    std::vector<Tensor> run(const std::vector<Input>& given) override;
    /// The CPU is where this runtime computes.
    std::vector<Tensor> run_device(const std::vector<Input>& given) override { return run(given); }
    std::unique_ptr<Steps> new_steps(const Roles& roles) override { return states_->made(roles); }
    bool give_back() override;

private:
    ov::Core core_;
    ov::CompiledModel made_;
    std::unique_ptr<OpenVinoRequest> request_;
    std::unique_ptr<OpenVinoStates> states_;
    std::mutex lock_;
};

OpenVinoSession::OpenVinoSession(const std::filesystem::path& path, const Manifest& manifest, const Form& form,
                                 int threads) {
    std::shared_ptr<ov::Model> graph;
    const IO& io = manifest.io;
    try {
        core_.set_property(ov::enable_mmap(may_map(manifest, form)));
        graph = core_.read_model(path.string());
    } catch (const std::exception& err) {
        throw Error(path.string() + " cannot be opened: " + escaped(err.what()));
    }
    made_ = compiled(core_, graph, form.plan, threads, path.string());
    const std::string build = ov::get_openvino_version().buildNumber;
    provider = "OpenVINO CPU";
    version = build.substr(0, build.find('-'));
    machine = this_cpu();
    for (const auto& port : made_.inputs()) inputs.push_back(described(port, form));
    for (const auto& port : made_.outputs()) outputs.push_back(described(port, form));
    request_ = std::make_unique<OpenVinoRequest>(made_, names_of(io.inputs), names_of(io.outputs));
    states_ = std::make_unique<OpenVinoStates>(core_, std::move(graph), form.plan, threads, path.string());
}

// The plugin gives its signal stack back here, to whichever thread closes the model.
OpenVinoSession::~OpenVinoSession() {
    const SignalStackKept kept;
    states_.reset();
    request_.reset();
    made_ = {};
}

/// Frees the pool and what was compiled for sizes; the C library has to be asked to pass it on.
bool OpenVinoSession::give_back() {
    {
        const std::lock_guard<std::mutex> held(lock_);
        made_.release_memory();
    }
    states_->give_back();
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
    return true;
}

std::vector<Tensor> OpenVinoSession::run(const std::vector<Input>& given) {
    const std::lock_guard<std::mutex> held(lock_);
    return request_->run(given);
}

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
