//! The option `--live` of `magmap replay`.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use magmap::mapping::stop::StopSignal;
use magmap_tools::foxglove::{Error, FoxgloveServer};

use crate::summary::Table;

/// Default address of `--live`: the port that Foxglove suggests, for this computer only.
pub const DEFAULT: &str = "127.0.0.1:8765";

/// Time for clients to get the last map where nobody is at the terminal, who could end the program.
const FAREWELL: Duration = Duration::from_secs(3);

/// How often a wait checks what it waits for.
const PERIOD: Duration = Duration::from_millis(50);

/// The address to listen on.
#[derive(Clone, Debug)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// Parses `HOST:PORT`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').unwrap_or_default();
        match port.parse() {
            Ok(port) if !host.is_empty() => Ok(Self { host: host.to_owned(), port }),
            _ => Err(format!("expected HOST:PORT, such as {DEFAULT}; the recording is named before --live")),
        }
    }

    /// Starts the server there. Foxglove shows the name of what is replayed.
    pub fn listen(&self, name: &str) -> Result<FoxgloveServer, Error> {
        FoxgloveServer::start(&self.host, self.port, &format!("magmap: {name}"))
    }
}

/// Says where the map is shown.
pub fn say(words: &str) -> io::Result<()> {
    let mut table = Table::default();
    table.row("live", words);
    table.print()
}

/// Keeps the map there after the replay: at a terminal until an interrupt, in a script until all clients have left, or soon anyway.
pub fn keep(server: &FoxgloveServer, stop: &StopSignal) -> io::Result<()> {
    let is_at_terminal = io::stderr().is_terminal();
    if is_at_terminal && !stop.is_stopped() {
        say(&format!("the map stays at {}; Ctrl-C ends", server.url()))?;
    }
    let ended = Instant::now();
    while !stop.is_stopped() && (is_at_terminal || server.clients() > 0 && ended.elapsed() < FAREWELL) {
        std::thread::sleep(PERIOD);
    }
    Ok(())
}
