// Keeps the stack that signals run on where it was before a library took it.
//
// OpenVINO's CPU plugin gives the thread that compiles a model a signal stack of the model's own, and takes it back
// when the model goes. Two models that do not go in reverse order leave the thread with a stack that is freed: the next
// signal that asks for that stack is then a segmentation fault (OpenVINO 2026.4.1, seen in gdb).
#pragma once

#if defined(__linux__)
#include <csignal>
#endif

namespace attnport::reader {

/// Gives the calling thread back, at the end, the signal stack that it has now; does nothing but on Linux.
class SignalStackKept {
public:
    SignalStackKept() {
#if defined(__linux__)
        known_ = sigaltstack(nullptr, &before_) == 0;
#endif
    }
    SignalStackKept(const SignalStackKept&) = delete;
    SignalStackKept& operator=(const SignalStackKept&) = delete;
    ~SignalStackKept() {
#if defined(__linux__)
        if (!known_) return;
        before_.ss_flags &= SS_DISABLE;
        sigaltstack(&before_, nullptr);
#endif
    }

private:
#if defined(__linux__)
    stack_t before_{};
    bool known_ = false;
#endif
};

}  // namespace attnport::reader
