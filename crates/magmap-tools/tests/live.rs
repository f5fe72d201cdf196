//! A replay as a client sees it: `magmap replay --live`, and the server behind it.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use magmap::config::Config;
use magmap::sensing::reading::Stamp;
use magmap_tools::foxglove::FoxgloveServer;
use magmap_tools::recording::drive_writer::messages;
use magmap_tools::recording::messages::{Message, OccupancyGrid, decode};
use magmap_tools::replay::{MEAN_TOPIC, Options, Replay, VARIANCE_TOPIC};
use nalgebra::Isometry3;
use serde_json::{Value, json};
use tempfile::tempdir;
use tungstenite::client::IntoClientRequest;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message as Frame, WebSocket};

use super::common;
use super::replay::{grids, measurements, simulation, source};

type Socket = WebSocket<MaybeTlsStream<std::net::TcpStream>>;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects as Foxglove does.
fn connect(url: &str) -> Socket {
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", "foxglove.sdk.v1".parse().unwrap());
    tungstenite::connect(request).unwrap().0
}

/// A text of the server, of this kind.
fn text(frame: &Frame, kind: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(frame.to_text().ok()?).ok()?;
    (value["op"] == kind).then_some(value)
}

/// A client of one topic of grids.
struct Subscriber {
    socket: Socket,
    request: Frame,
}

/// Connects and subscribes to a topic of grids once it is advertised.
fn subscribe(url: &str, topic: &str) -> Subscriber {
    let mut socket = connect(url);
    let first = socket.read().unwrap();
    assert!(text(&first, "serverInfo").unwrap()["name"].as_str().unwrap().starts_with("magmap"));
    loop {
        let frame = socket.read().unwrap();
        let channels = text(&frame, "advertise").map(|advertised| advertised["channels"].clone());
        let Some(channel) =
            channels.iter().flat_map(|list| list.as_array().unwrap()).find(|channel| channel["topic"] == topic)
        else {
            continue;
        };
        assert_eq!((&channel["encoding"], &channel["schemaEncoding"]), (&"cdr".into(), &"ros2msg".into()));
        assert_eq!(
            (&channel["schemaName"], &channel["schema"]),
            (&OccupancyGrid::TYPE.into(), &OccupancyGrid::definition().into())
        );
        let subscription = json!({ "op": "subscribe", "subscriptions": [{ "id": 7, "channelId": channel["id"] }] });
        let request = Frame::text(subscription.to_string());
        socket.send(request.clone()).unwrap();
        return Subscriber { socket, request };
    }
}

impl Subscriber {
    /// The next grid; none when the server is gone.
    fn next_grid(&mut self) -> Option<OccupancyGrid> {
        loop {
            let frame = self.socket.read().ok()?;
            if let Frame::Binary(bytes) = frame {
                // Opcode 1, the subscription and the time precede a message.
                assert_eq!(bytes[..5], [1, 7, 0, 0, 0]);
                return Some(decode(&bytes[13..]).unwrap());
            }
            // The server advertises a channel just before it accepts subscriptions to it.
            if text(&frame, "status").is_some_and(|status| status["message"].as_str().unwrap().starts_with("Unknown")) {
                self.socket.send(self.request.clone()).ok()?;
            }
        }
    }
}

/// A client that receives the grids of a topic until the server is gone.
fn watch(url: &str, topic: &'static str) -> (Receiver<OccupancyGrid>, JoinHandle<()>) {
    let (sender, grids) = mpsc::channel();
    let url = url.to_owned();
    let thread = std::thread::spawn(move || {
        let mut subscriber = subscribe(&url, topic);
        while let Some(grid) = subscriber.next_grid() {
            if sender.send(grid).is_err() {
                return;
            }
        }
    });
    (grids, thread)
}

/// Every grid up to the `last`; a client that subscribes just when one is sent may get it twice.
fn up_to(last: &OccupancyGrid, grids: &Receiver<OccupancyGrid>) -> Vec<OccupancyGrid> {
    let mut received: Vec<OccupancyGrid> = Vec::new();
    while received.last() != Some(last) {
        received.push(grids.recv_timeout(PATIENCE).unwrap());
        received.dedup();
    }
    received
}

#[test]
fn clients_get_the_grids_of_the_file_and_late_ones_the_newest_at_once() {
    let server = FoxgloveServer::start("127.0.0.1", 0, "magmap").unwrap();
    let url = server.url();
    let (means, _) = watch(&url, MEAN_TOPIC);
    let folder = tempdir().unwrap();
    let options = Options { live: Some(server.writer()), ..Options::default() };
    let replay = Replay::start(&Config::default(), source(), folder.path(), options, |_| {}).unwrap();
    let measurements = measurements(&simulation());
    let half = measurements.len() / 2;
    let mut seen = Vec::new();
    let mut late = None;
    let drive = measurements.into_iter().enumerate().map(|(index, measurement)| {
        if index == half {
            // Nothing more is driven until both have a map.
            seen.push(means.recv_timeout(PATIENCE).unwrap());
            let variances = watch(&url, VARIANCE_TOPIC).0;
            late = Some((variances.recv_timeout(PATIENCE).unwrap(), variances));
        }
        measurement
    });
    replay.run(messages::<Infallible>(Isometry3::identity(), drive)).unwrap();

    let messages = |topic| grids(folder.path(), topic).into_iter().map(|(_, grid)| grid).collect::<Vec<_>>();
    let (written, written_variances) = (messages(MEAN_TOPIC), messages(VARIANCE_TOPIC));
    assert!(written.len() >= 3, "{} grids", written.len());
    seen.extend(up_to(written.last().unwrap(), &means));
    seen.dedup();
    assert!(seen == written, "{} grids of {}", seen.len(), written.len());

    let (first, variances) = late.unwrap();
    assert!(written_variances.contains(&first));
    assert!(up_to(written_variances.last().unwrap(), &variances).len() < written_variances.len());
    // After the end, the last one stays.
    assert!(watch(&url, MEAN_TOPIC).0.recv_timeout(PATIENCE).unwrap() == *written.last().unwrap());
}

/// Sends more than the sockets of a client that reads nothing can hold.
#[test]
fn clients_that_read_nothing_or_leave_do_not_hold_up_the_writer() {
    let server = FoxgloveServer::start("127.0.0.1", 0, "magmap").unwrap();
    let mut writer = server.writer();
    let grid = |value| OccupancyGrid { data: vec![value; 1 << 20], ..OccupancyGrid::default() };
    writer.write("/map", &grid(0), Stamp::default()).unwrap();
    let mut stalled = subscribe(&server.url(), "/map");
    // Once it has the first message it is subscribed.
    assert_eq!(stalled.next_grid().unwrap().data[0], 0);
    let (done, written) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        for value in 1..=60 {
            writer.write("/map", &grid(value), Stamp::default()).unwrap();
        }
        done.send(()).unwrap();
        writer
    });
    written.recv_timeout(PATIENCE).expect("the writer to be done though a client reads nothing");
    let mut writer = thread.join().unwrap();

    let mut other = subscribe(&server.url(), "/map");
    assert_eq!(other.next_grid().unwrap().data[0], 60);
    // What the stalled client had not read is bounded: it misses some, in order, and ends with the newest.
    let values: Vec<i8> =
        std::iter::from_fn(|| stalled.next_grid()).map(|grid| grid.data[0]).take_while(|&value| value < 60).collect();
    assert!(values.is_sorted() && values.len() < 59, "{values:?}");

    drop(stalled);
    writer.write("/map", &grid(61), Stamp::default()).unwrap();
    assert_eq!(other.next_grid().unwrap().data[0], 61);
}

#[test]
fn a_port_in_use_ends_the_command_before_anything_is_written() {
    let folder = tempdir().unwrap();
    let program = |arguments: &[&str]| common::command(env!("CARGO_BIN_EXE_magmap"), arguments, folder.path());
    common::expect(0, program(&["simulate", "--out", "bag", "--duration", "5"]));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (out, err) = common::expect(1, program(&["replay", "bag", "--live", &address]));
    assert!(out.is_empty() && err.contains(&format!("cannot listen on {address}: ")) && err.contains("port"), "{err}");
    assert!(!folder.path().join("bag-map").exists());
}

/// Without a terminal it ends by itself.
#[test]
fn the_command_names_its_address_and_ends_when_its_clients_have_the_map() {
    let folder = tempdir().unwrap();
    let program = |arguments: &[&str]| common::command(env!("CARGO_BIN_EXE_magmap"), arguments, folder.path());
    common::expect(0, program(&["simulate", "--out", "bag", "--duration", "10", "--size", "3x3"]));
    let mut child = program(&["replay", "bag", "--live", "127.0.0.1:0", "--speed", "10"]);
    let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let line = lines.next().unwrap().unwrap();
    let url = line.split([' ', ',']).find(|word| word.starts_with("ws://127.0.0.1:")).unwrap();
    let (means, thread) = watch(url, MEAN_TOPIC);
    thread.join().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(lines.map(Result::unwrap).any(|line| line.starts_with("written")));
    let (_, last) = grids(&folder.path().join("bag-map"), MEAN_TOPIC).pop().unwrap();
    assert!(means.into_iter().last().unwrap() == last);
}
