//! Past readings that are kept as they came, and which.

use super::site::Site;
use crate::Places;

/// Readings that are kept, with their sites.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory<P> {
    /// Places of the readings.
    pub places: P,
    /// Targets of the readings.
    pub targets: Vec<f64>,
    /// How each is represented in the posterior.
    pub sites: Vec<Site>,
}

impl<P: Places> Memory<P> {
    /// The memory, then other readings with sites that say nothing yet.
    pub(super) fn followed_by(&self, places: &P, targets: &[f64]) -> Self {
        let mut sites = self.sites.clone();
        sites.resize(sites.len() + targets.len(), Site::default());
        Self { places: self.places.followed_by(places), targets: [&self.targets, targets].concat(), sites }
    }

    /// The readings with these indices.
    pub(super) fn select(&self, indices: &[usize]) -> Self {
        Self {
            places: self.places.select(indices.iter().copied()),
            targets: indices.iter().map(|&i| self.targets[i]).collect(),
            sites: indices.iter().map(|&i| self.sites[i]).collect(),
        }
    }
}

/// Chooses `count` of the scores, each with a probability in proportion to its score, or surely where that exceeds 1. Returns their
/// indices in order.
///
/// The paper draws at random. Here it is systematic sampling (Madow 1949): equal steps along the running sum of the scores, so that
/// equal data give an equal memory, and one that is spread along the drive.
pub(super) fn sample(scores: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    if count >= scores.len() {
        return order;
    }
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut chosen = Vec::with_capacity(count);
    let mut total: f64 = scores.iter().sum();
    for &largest in order.iter().take(count) {
        if scores[largest] * ((count - chosen.len()) as f64) < total {
            break;
        }
        total -= scores[largest];
        chosen.push(largest);
    }
    let mut rest = order.split_off(chosen.len());
    rest.sort_unstable();
    let step = total / (count - chosen.len()) as f64;
    let (mut sum, mut next) = (0.0, 0.5 * step);
    for index in rest {
        sum += scores[index];
        if chosen.len() < count && sum >= next {
            chosen.push(index);
            next += step;
        }
    }
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_are_sampled_evenly() {
        assert_eq!(sample(&[1.0; 12], 4), [1, 4, 7, 10]);
        assert_eq!(sample(&[0.3; 3], 5), [0, 1, 2]);
        assert_eq!(sample(&[0.3; 3], 0), [0usize; 0]);
        assert_eq!(sample(&[0.0; 5], 2).len(), 2);
    }

    #[test]
    fn a_score_counts_by_its_size() {
        // The last is worth more than one of three steps through the sum of 30, and is chosen once.
        let mut scores = vec![1.0; 10];
        scores.push(20.0);
        let chosen = sample(&scores, 3);
        assert_eq!(chosen, [2, 7, 10]);
        // Of two halves, one with three times the scores of the other, come three times as many.
        let scores: Vec<f64> = (0..100).map(|i| if i < 50 { 0.01 } else { 0.03 }).collect();
        let first = sample(&scores, 20).iter().filter(|&&i| i < 50).count();
        assert_eq!(first, 5);
    }
}
