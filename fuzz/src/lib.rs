//! Code that the targets share: they read as `crates/magmap-tools/tests/hostile_files.rs` does, with inputs that libFuzzer makes.

#[path = "../../crates/magmap-tools/tests/hostile/mod.rs"]
mod hostile;

use std::sync::LazyLock;

pub use libfuzzer_sys;
use tempfile::TempDir;

/// Left behind by the process, which never ends in good order; `fuzz/run` gives it a place that it removes.
static FOLDER: LazyLock<TempDir> = LazyLock::new(hostile::folder);

/// Reads an input. Panics where it takes more memory than it may.
pub fn read(name: &str, bytes: &[u8]) {
    let reader = hostile::reader(name);
    let folder = FOLDER.path();
    let peak = hostile::memory::peak(|| (reader.read)(folder, bytes));
    let most = reader.allowed_memory(bytes.len());
    assert!(peak <= most, "{peak} bytes of memory for an input of {}, more than {most}", bytes.len());
}

/// Changes an input, and mostly sets its checksums right.
pub fn mutate(name: &str, bytes: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let size = libfuzzer_sys::fuzzer_mutate(bytes, size, max_size);
    if seed % 8 > 0 {
        (hostile::reader(name).repair)(&mut bytes[..size]);
    }
    size
}

/// The target for the reader of this name.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::read($name, bytes));
        $crate::libfuzzer_sys::fuzz_mutator!(|bytes: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate($name, bytes, size, max_size, seed)
        });
    };
}
