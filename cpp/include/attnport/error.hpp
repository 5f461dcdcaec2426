// What can go wrong with a bundle; each class owns the exit code of the command line.
#pragma once

#include <stdexcept>

#include <attnport/api.hpp>

namespace attnport {

/// Not a bundle, of a version that this reader does not know, or used in a way that it does not offer.
class ATTNPORT_API Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;

    /// The exit code that a program ends with: that of each class below; 2 here, also where there is too little memory.
    /// Defined in error.cpp, so that a catch in another library works.
    [[nodiscard]] virtual int exit_code() const noexcept;
};

/// Inputs do not fit the model: the message names the tensor, what was got and what is expected. Exit code 2.
class ATTNPORT_API FeedError : public Error {
public:
    using Error::Error;
    [[nodiscard]] int exit_code() const noexcept override;
};

/// The runtime is not there, is older than the bundle needs, or was not compiled into this library. Exit code 3.
class ATTNPORT_API RuntimeMissing : public Error {
public:
    using Error::Error;
    [[nodiscard]] int exit_code() const noexcept override;
};

/// The model computes something else here than where the bundle was made. Exit code 4.
class ATTNPORT_API NumbersOff : public Error {
public:
    using Error::Error;
    [[nodiscard]] int exit_code() const noexcept override;
};

/// Something went wrong in the library that it did not expect: a bug. Exit code 1.
class ATTNPORT_API NotExpected : public Error {
public:
    using Error::Error;
    [[nodiscard]] int exit_code() const noexcept override;
};

/// A file is not the one that was bundled, or the manifest cannot be trusted. Exit code 6.
class ATTNPORT_API IntegrityError : public Error {
public:
    using Error::Error;
    [[nodiscard]] int exit_code() const noexcept override;
};

}  // namespace attnport
