// The border of the library.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include <attnport/error.hpp>

namespace attnport::reader {

/// Turns every exception into an attnport::Error.
template <class Work> auto guarded(const Work& work) {
    try {
        return work();
    } catch (const Error&) {
        throw;
    } catch (const std::bad_alloc&) {
        throw Error("there is not enough memory.");
    } catch (const std::system_error& err) {  // std::filesystem's too: of the machine, not of the library
        throw Error(err.what());
    } catch (const std::exception& err) {
        throw NotExpected(std::string("not expected, please report it: ") + err.what());
    }
}

}  // namespace attnport::reader
