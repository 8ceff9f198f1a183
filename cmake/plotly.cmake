# The page of `flashcore report` carries its charts inside itself: plotly.min.js (MIT) from the PyPI package `plotly`,
# which scripts/install-packages puts into .venv. Stored gzip-compressed (a third of the size) and inflated by the
# browser. -DFLASHCORE_PLOTLY=/path/to/plotly.min.js takes another copy.
file(GLOB plotly_found LIST_DIRECTORIES false
     ${CMAKE_SOURCE_DIR}/.venv*/lib/python3*/site-packages/plotly/package_data/plotly.min.js)
list(POP_FRONT plotly_found plotly_default)
set(FLASHCORE_PLOTLY "${plotly_default}" CACHE FILEPATH "plotly.min.js, embedded into the binary for the HTML report")
# A build folder configured before the script had run remembers an empty path.
if(NOT FLASHCORE_PLOTLY AND plotly_default)
  set_property(CACHE FLASHCORE_PLOTLY PROPERTY VALUE "${plotly_default}")
endif()
if(NOT FLASHCORE_PLOTLY OR NOT EXISTS "${FLASHCORE_PLOTLY}")
  message(FATAL_ERROR
    "plotly.min.js was not found (looked at FLASHCORE_PLOTLY='${FLASHCORE_PLOTLY}' and "
    "${CMAKE_SOURCE_DIR}/.venv*/lib/python3*/site-packages/plotly/package_data/plotly.min.js). The HTML report needs it. "
    "Run scripts/install-packages, which fetches it from PyPI into .venv, or pass -DFLASHCORE_PLOTLY=/path/to/plotly.min.js.")
endif()

set(plotly_directory ${CMAKE_BINARY_DIR}/plotly)
set(plotly_archive ${plotly_directory}/plotly.min.js.gz)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${FLASHCORE_PLOTLY}")
if(NOT EXISTS ${plotly_archive} OR "${FLASHCORE_PLOTLY}" IS_NEWER_THAN ${plotly_archive})
  file(MAKE_DIRECTORY ${plotly_directory})
  file(ARCHIVE_CREATE OUTPUT ${plotly_archive} PATHS ${FLASHCORE_PLOTLY} FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
endif()
flashcore_embed(flashcore_lab plotly NAMESPACE flashcore FUNCTION embedded_plotly HEADER lab/report/assets.h
                ROOT ${plotly_directory} PATTERNS *.gz)
flashcore_embed(flashcore_lab report_assets NAMESPACE flashcore FUNCTION embedded_report_assets HEADER lab/report/assets.h
                ROOT ${CMAKE_SOURCE_DIR}/src/lab/report/assets PATTERNS *.css *.js)
