// Stands in for ONNX Runtime, and has no version: what no release does, and nobody who calls one expects.
namespace {

struct Base {
    const void* (*interface_of)(unsigned version);
    const char* (*version)();
};

}  // namespace

extern "C" const Base* OrtGetApiBase() {
    static const Base base{[](unsigned) -> const void* { return nullptr; }, []() -> const char* { return nullptr; }};
    return &base;
}
