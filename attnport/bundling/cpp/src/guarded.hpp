// The border of the library: whatever goes wrong inside leaves it as one of its own errors.
#pragma once

#include <exception>
#include <new>

#include <attnport/error.hpp>

namespace attnport::reader {

/// What an application may not catch, such as std::bad_alloc, leaves the library as one of its own errors.
template <class Work> auto guarded(const Work& work) {
    try {
        return work();
    } catch (const Error&) {
        throw;
    } catch (const std::bad_alloc&) {
        throw Error("there is not enough memory.");
    } catch (const std::exception& err) {
        throw Error(err.what());
    }
}

}  // namespace attnport::reader
