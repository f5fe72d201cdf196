#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| { let _ = magmap::recording::messages::decode::<magmap::recording::messages::Odometry>(data); });
