//! Where the steel is, in words.

/// Says where the sources of the field are, given the share of its variance that those below the sensor cause.
pub fn in_words(share_below: f64) -> String {
    let where_it_is = match share_below {
        share if share > 0.9 => "below the sensor",
        share if share > 0.65 => "mostly below the sensor",
        share if share >= 0.35 => "below and above the sensor, or beside it",
        share if share >= 0.1 => "mostly above the sensor",
        _ => "above the sensor",
    };
    let or_turned = match share_below {
        share if share < 0.35 => {
            "; steel below a sensor that is turned by half a turn, or has z reversed, looks the same"
        }
        _ => "",
    };
    format!("{where_it_is}: {:.0} % of the field's variance comes from below{or_turned}", 100.0 * share_below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_has_its_words() {
        let words = [1.0, 0.8, 0.5, 0.2, 0.0].map(in_words);
        assert_eq!(words[1], "mostly below the sensor: 80 % of the field's variance comes from below");
        assert!(
            words[4]
                .starts_with("above the sensor: 0 % of the field's variance comes from below; steel below a sensor")
        );
        assert!(words[3].contains("half a turn") && !words[2].contains("half a turn"));
        assert!((1..5).all(|index| !words[..index].contains(&words[index])), "{words:?}");
        assert!(words[2].contains("beside"));
    }
}
