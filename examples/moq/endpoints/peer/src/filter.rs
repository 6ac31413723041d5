//! Filters and ranges, as they are written on the command line.

use crate::Failure;
use moqtap_client::draft22::fill::{FillParameters, LocationFilter};
use moqtap_codec::kvp::{KeyValuePair, KvpValue};
use moqtap_codec::range_filter::{FilterRange, RangeFilter};
use moqtap_codec::subscription_filter::{FilterEnd, SubscriptionFilter};
use moqtap_codec::types::{FilterType, Location};
use moqtap_codec::varint::{Moqt18, VarInt};
use moqtap_codec::version::DraftVersion;

/// Two numbers with a mark between them.
fn pair(text: &str, mark: char) -> Result<(u64, u64), Failure> {
    let (a, b) = text.split_once(mark).ok_or_else(|| format!("{text:?}: two numbers with {mark:?} between them"))?;
    Ok((a.parse()?, b.parse()?))
}

/// `GROUP.OBJECT-GROUP.OBJECT`: the first and the last location of a range.
pub fn range(text: &str) -> Result<((u64, u64), (u64, u64)), Failure> {
    let (from, to) = text.split_once('-').ok_or_else(|| format!("{text:?}: GROUP.OBJECT-GROUP.OBJECT"))?;
    Ok((pair(from, '.')?, pair(to, '.')?))
}

/// The filter of a range, in draft 22.
fn location(text: &str) -> Result<LocationFilter, Failure> {
    let ((group, object), (end, last)) = range(text)?;
    Ok(LocationFilter::range_to(group, object, end.wrapping_sub(group), last)?)
}

/// The parameter of SUBSCRIBE that is meant by `next` (object), `from=GROUP.OBJECT`, `groups=FIRST-LAST`; in draft 22
/// also by `range=GROUP.OBJECT-GROUP.OBJECT`, `fill=…`, and `TYPE=FIRST-LAST,…`, a range filter by its type in
/// hexadecimal.
pub fn parameter(draft: DraftVersion, text: &str) -> Result<KeyValuePair, Failure> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    if draft == DraftVersion::Draft18 {
        return Ok(older(name, value)?.parameter_moqt::<Moqt18>()?);
    }
    Ok(match name {
        "next" => LocationFilter::next_object().parameter()?,
        "from" => {
            let (group, object) = pair(value, '.')?;
            LocationFilter::absolute_start(group, object).parameter()?
        }
        "groups" => {
            let (first, last) = pair(value, '-')?;
            LocationFilter::range(first, 0, last.wrapping_sub(first))?.parameter()?
        }
        "range" => location(value)?.parameter()?,
        "fill" => FillParameters::inherited().with_range(&location(value)?)?.parameter()?,
        _ => {
            let ranges = value.split(',').map(|one| {
                let (start, end) = pair(one, '-')?;
                Ok(FilterRange { start, end: Some(end) })
            });
            let ranges = ranges.collect::<Result<Vec<_>, Failure>>()?;
            let filter =
                RangeFilter { parameter_type: u64::from_str_radix(name, 16)?, set_id: 0, property_type: None, ranges };
            let mut bytes = Vec::new();
            filter.encode_moqt::<Moqt18>(&mut bytes)?;
            KeyValuePair { key: VarInt::from_u64_moqt(filter.parameter_type), value: KvpValue::Bytes(bytes) }
        }
    })
}

/// A filter of draft 18.
fn older(name: &str, value: &str) -> Result<SubscriptionFilter, Failure> {
    let at = |group, object| {
        Some(Location { group: VarInt::from_u64_moqt(group), object: VarInt::from_u64_moqt(object) })
    };
    Ok(match name {
        "next" => SubscriptionFilter { filter_type: FilterType::LargestObject, start_location: None, end_group: None },
        "from" => {
            let (group, object) = pair(value, '.')?;
            let start_location = at(group, object);
            SubscriptionFilter { filter_type: FilterType::AbsoluteStart, start_location, end_group: None }
        }
        "groups" => {
            let (first, last) = pair(value, '-')?;
            let end_group = Some(FilterEnd::GroupDelta(last.wrapping_sub(first)));
            SubscriptionFilter { filter_type: FilterType::AbsoluteRange, start_location: at(first, 0), end_group }
        }
        _ => return Err(format!("{name:?}: draft 18 has next, from and groups").into()),
    })
}
