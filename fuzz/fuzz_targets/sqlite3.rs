#![no_main]

magmap_fuzz::target!("sqlite3");
