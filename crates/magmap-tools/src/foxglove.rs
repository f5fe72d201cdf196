//! A server of messages for those who watch, in [Foxglove](https://foxglove.dev) or another client of its WebSocket protocol.
//!
//! Whoever subscribes to a topic gets its newest message at once, and then every further one. Nobody who watches holds up the
//! writer: each has a short queue, which loses its oldest messages where they are read too slowly.

use std::io;
use std::sync::{Arc, Mutex};

use foxglove::websocket::{ChannelView, Client, ServerListener};
use foxglove::{Context, FoxgloveError, RawChannel, Schema, WebSocketServerHandle};

use crate::recording::writer::{Destination, MessageWriter, WrittenTopic};
use magmap::sensing::reading::Stamp;
use magmap::sync::lock;

/// Most messages that wait for one client: a few of each topic, because those of a large map take megabytes.
const MAX_WAITING: usize = 16;

/// A server that cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("the live server cannot listen on {address}: {source}; name another address or port")]
pub struct Error {
    /// Host and port.
    pub address: String,
    /// The cause.
    pub source: io::Error,
}

/// A server, which runs until the program ends.
pub struct FoxgloveServer {
    host: String,
    server: WebSocketServerHandle,
    topics: Arc<Topics>,
}

impl FoxgloveServer {
    /// Listens on a host (an address of this computer, IPv6 in brackets, or its name) and a port, 0 being any that is free. Clients are
    /// shown the `name`. Must not be called by asynchronous code.
    ///
    /// # Errors
    /// A host that is not this computer, and a port that is in use or not allowed.
    pub fn start(host: &str, port: u16, name: &str) -> Result<Self, Error> {
        let topics = Arc::new(Topics { context: Context::new(), list: Mutex::default() });
        let server = topics.context.websocket_server().name(name).bind(host, port);
        let server = server.message_backlog_size(MAX_WAITING).listener(Arc::clone(&topics) as _).start_blocking();
        let server = server.map_err(|error| Error {
            address: format!("{host}:{port}"),
            source: match error {
                FoxgloveError::Bind(source) => source,
                other => io::Error::other(other),
            },
        })?;
        Ok(Self { host: host.to_owned(), server, topics })
    }

    /// The address for clients, such as `ws://127.0.0.1:8765`.
    pub fn url(&self) -> String {
        format!("ws://{}:{}", self.host, self.server.port())
    }

    /// Number of connected clients.
    pub fn clients(&self) -> usize {
        self.server.client_count()
    }

    /// A writer to all clients. Each topic has one writer.
    pub fn writer(&self) -> MessageWriter {
        MessageWriter::new(FoxgloveTopics(Arc::clone(&self.topics)))
    }
}

/// The topics of a server.
struct Topics {
    context: Arc<Context>,
    list: Mutex<Vec<Topic>>,
}

struct Topic {
    channel: Arc<RawChannel>,
    /// Empty before the first message.
    newest: Vec<u8>,
}

impl ServerListener for Topics {
    /// The lock, which a writer takes too, keeps the order of the messages.
    fn on_subscribe(&self, client: Client, channel: ChannelView) {
        let topics = lock(&self.list);
        let topic = topics.iter().find(|topic| topic.channel.id() == channel.id() && !topic.newest.is_empty());
        if let Some(Topic { channel, newest }) = topic {
            channel.log_to_sink(newest, client.sink_id());
        }
    }
}

/// The topics as the destination of a writer. An id is an index into the list.
struct FoxgloveTopics(Arc<Topics>);

impl Destination for FoxgloveTopics {
    fn add_topic(&mut self, name: &str, type_name: &str, definition: &str) -> Result<i64, crate::recording::Error> {
        let Topics { context, list } = &*self.0;
        let schema = Schema::new(type_name, "ros2msg", definition.as_bytes().to_vec());
        let channel = context.channel_builder(name).message_encoding("cdr").schema(schema).build_raw();
        let problem =
            |error: FoxgloveError| crate::recording::Error::Write { topic: name.into(), reason: error.to_string() };
        let mut topics = lock(list);
        topics.push(Topic { channel: channel.map_err(problem)?, newest: Vec::new() });
        Ok(topics.len() as i64 - 1)
    }

    /// Clients see the time at which a message is sent, as if it came from a robot; its own stamp is in its header.
    fn write(&mut self, topic: &WrittenTopic, data: &[u8], _: Stamp) -> Result<(), crate::recording::Error> {
        let mut topics = lock(&self.0.list);
        if let Some(topic) = usize::try_from(topic.id).ok().and_then(|index| topics.get_mut(index)) {
            topic.newest = data.to_vec();
            topic.channel.log(data);
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), crate::recording::Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::messages::{Message, OccupancyGrid, decode};
    use std::time::Duration;
    use tungstenite::client::IntoClientRequest;

    fn server() -> FoxgloveServer {
        FoxgloveServer::start("127.0.0.1", 0, "magmap").unwrap()
    }

    fn grid(value: i8) -> OccupancyGrid {
        OccupancyGrid { data: vec![value], ..OccupancyGrid::default() }
    }

    #[test]
    fn the_newest_message_of_each_topic_is_kept_for_those_who_come_late() {
        let server = server();
        let mut writers = [server.writer(), server.writer()];
        for (writer, topic, value) in [(0, "/mean", 1), (1, "/variance", 2), (0, "/mean", 3), (0, "/path", 4)] {
            writers[writer].write(topic, &grid(value), Stamp::default()).unwrap();
        }
        let topics = lock(&server.topics.list);
        let kept = |topic: &Topic| {
            let newest: OccupancyGrid = decode(&topic.newest).unwrap();
            (topic.channel.topic().to_owned(), newest.data[0])
        };
        let expected = [("/mean", 3), ("/variance", 2), ("/path", 4)].map(|(name, value)| (name.to_owned(), value));
        assert_eq!(topics.iter().map(kept).collect::<Vec<_>>(), expected);
        let schema = topics[0].channel.schema().unwrap();
        assert_eq!((schema.name.as_str(), schema.encoding.as_str()), (OccupancyGrid::TYPE, "ros2msg"));
    }

    #[test]
    fn a_server_says_where_it_listens_and_why_it_cannot() {
        let server = server();
        let (_, port) = server.url().rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
        assert_eq!(server.url(), format!("ws://127.0.0.1:{port}"));
        let taken = FoxgloveServer::start("127.0.0.1", port.parse().unwrap(), "magmap").err().unwrap().to_string();
        assert!(taken.starts_with(&format!("the live server cannot listen on 127.0.0.1:{port}: ")), "{taken}");
        // An address for documentation, which no computer has.
        let elsewhere = FoxgloveServer::start("203.0.113.1", 0, "magmap").err().unwrap().to_string();
        assert!(
            elsewhere.contains("203.0.113.1:0") && elsewhere.ends_with("; name another address or port"),
            "{elsewhere}"
        );
    }

    #[test]
    fn clients_are_counted_while_they_are_connected() {
        let server = server();
        // What happens on the server's threads takes a moment.
        let wait_for = |count| {
            while server.clients() != count {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        assert_eq!(server.clients(), 0);
        let connected = || {
            let mut request = server.url().into_client_request().unwrap();
            request.headers_mut().insert("Sec-WebSocket-Protocol", "foxglove.sdk.v1".parse().unwrap());
            tungstenite::connect(request).unwrap().0
        };
        let first = connected();
        wait_for(1);
        let second = connected();
        wait_for(2);
        drop(first);
        wait_for(1);
        drop(second);
        wait_for(0);
    }
}
