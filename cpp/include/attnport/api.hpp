// What the library shows to those who link it; everything else is hidden.
#pragma once

#if defined(__GNUC__)
#define ATTNPORT_API __attribute__((visibility("default")))
#else
#define ATTNPORT_API
#endif
