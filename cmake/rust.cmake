# Finds what the Rust part of the package is built with, or says what to install: CARGO.

# rustup's cargo comes before the distribution's, which may be too old.
find_program(CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin")
file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/Cargo.toml" minimum_rust REGEX "^rust-version")
string(REGEX REPLACE "[^0-9.]" "" minimum_rust "${minimum_rust}")
set(install_rust "Install Rust ${minimum_rust} or newer as https://www.rust-lang.org/tools/install says")

if(NOT CARGO)
  message(FATAL_ERROR "magmap is written in Rust, and there is no cargo on the PATH nor in ~/.cargo/bin. ${install_rust}.")
endif()

execute_process(
  COMMAND "${CARGO}" --version
  WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
  OUTPUT_VARIABLE found_rust
  RESULT_VARIABLE failure
  OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" found_version "${found_rust}")
if(failure OR NOT found_version)
  message(FATAL_ERROR "${CARGO} does not run: expected a version, found '${found_rust}' (${failure}). ${install_rust}.")
elseif(found_version VERSION_LESS minimum_rust)
  unset(CARGO CACHE)
  message(FATAL_ERROR "magmap needs Rust ${minimum_rust} or newer, found ${found_rust}. ${install_rust}, or run 'rustup update'.")
endif()

# Where bindgen looks for libclang, which reads the C headers of ROS.
find_program(LLVM_CONFIG NAMES llvm-config)
if(LLVM_CONFIG)
  execute_process(COMMAND "${LLVM_CONFIG}" --libdir OUTPUT_VARIABLE llvm_folder OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(libclang "")
foreach(folder "$ENV{LIBCLANG_PATH}" "${llvm_folder}" /usr/lib/llvm* /usr/lib /usr/lib64 /usr/lib/*-linux-gnu* /usr/local/lib*)
  if(folder)
    file(GLOB libraries
      "${folder}/libclang.so*" "${folder}/libclang-[0-9]*.so*"
      "${folder}/lib/libclang.so*" "${folder}/lib/libclang-[0-9]*.so*" "${folder}/libclang.dylib")
    list(APPEND libclang ${libraries})
  endif()
endforeach()
if(NOT libclang AND NOT EXISTS "$ENV{LIBCLANG_PATH}")
  message(FATAL_ERROR
    "magmap needs libclang to read the C headers of ROS, and none was found. Install it (on Debian and Ubuntu: "
    "apt install clang libclang-dev), or set the environment variable LIBCLANG_PATH to the folder that holds libclang.so.")
endif()
