# A build inside of a bundle adds files to it, which every reader refuses.
if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/../bundle.json")
  get_filename_component(ATTNPORT_BUNDLE "${CMAKE_CURRENT_SOURCE_DIR}/.." REALPATH)
  get_filename_component(ATTNPORT_BUILD "${CMAKE_CURRENT_BINARY_DIR}" REALPATH)
  string(FIND "${ATTNPORT_BUILD}/" "${ATTNPORT_BUNDLE}/" ATTNPORT_INSIDE)
  if(ATTNPORT_INSIDE EQUAL 0)
    message(FATAL_ERROR "Build outside of the bundle ${ATTNPORT_BUNDLE}: files that are added to it are refused. "
                        "Give a folder beside it, as in cmake -S cpp -B ../build, and remove ${ATTNPORT_BUILD}.")
  endif()
endif()
