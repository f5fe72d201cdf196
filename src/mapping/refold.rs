//! Making the map again without observations that were withdrawn, on a thread of its own: mapping never waits for it.

use crossbeam_channel::{Receiver, TryRecvError, bounded};

use super::mapper::{Folded, Mapper, Refolded};
use super::step_log::ReadTrajectory;
use super::stop::StopSignal;
use crate::field::model::FieldModel;
use crate::sensing::reading::Observation;
use crate::trajectory::fold_onto;

/// A map that is being made again. It is given up when this is dropped.
#[derive(Debug)]
pub(super) struct Refold {
    /// None once there will be no map: the log says why.
    folded: Option<Receiver<Box<Folded>>>,
    /// Number of withdrawals without which it is made.
    withdrawals: usize,
    /// Batches learnt since it began.
    since: Vec<Vec<Observation>>,
    stop: StopSignal,
}

impl Refold {
    /// Starts the thread for the map as it is now, and the batches that led to it; on one core where mapping continues beside it. It is given
    /// up when `ends` is set.
    pub(super) fn start(mapper: &Mapper, read: ReadTrajectory, is_beside_mapping: bool, ends: &StopSignal) -> Self {
        let (result, folded) = bounded(1);
        let store = mapper.model().tile_store();
        let stop = StopSignal::default();
        let mut config = mapper.config().decided(mapper.model().field()).into_owned();
        if is_beside_mapping {
            // The mapping thread needs the other cores. The map does not depend on it.
            config.tiles.threads = 1;
        }
        let (count, whole) = (mapper.trajectory().withdrawals.len(), mapper.trajectory().with_batches(Vec::new()));
        let stops = [stop.clone(), ends.clone()];
        let is_stopped = move || stops.iter().any(StopSignal::is_stopped);
        let refold = move || match read() {
            Ok(batches) => {
                let whole = whole.with_batches(batches);
                let model = FieldModel::kept_in(store, &config);
                let model = fold_onto(model, whole.corrected_batches(), &is_stopped, |_, _| {});
                if !is_stopped() {
                    // The map may have been replaced.
                    let _ = result.send(Box::new(Folded { model, batches: whole.batches().len() }));
                }
            }
            Err(error) => log::warn!("the map is not made again without what was withdrawn: {error}"),
        };
        if let Err(error) = std::thread::Builder::new().name("refold".into()).spawn(refold) {
            log::warn!("the map is not made again without what was withdrawn: cannot start a thread: {error}");
        }
        Self { folded: Some(folded), withdrawals: count, since: Vec::new(), stop }
    }

    /// Takes a batch that was learnt.
    pub(super) fn add(&mut self, batch: &[Observation]) {
        if self.folded.is_some() {
            self.since.push(batch.to_vec());
        }
    }

    /// The map, once it is made; waits for it where it is asked to.
    pub(super) fn take(&mut self, waits: bool) -> Option<Refolded> {
        let receiver = self.folded.as_ref()?;
        let taken = if waits { receiver.recv().map_err(TryRecvError::from) } else { receiver.try_recv() };
        if taken == Err(TryRecvError::Disconnected) {
            (self.folded, self.since) = (None, Vec::new());
        }
        let folded = taken.ok()?;
        Some(Refolded { folded, since: std::mem::take(&mut self.since), withdrawals: self.withdrawals })
    }
}

impl Drop for Refold {
    fn drop(&mut self) {
        self.stop.stop();
    }
}
