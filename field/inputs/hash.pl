# Looks up random keys of a hash, small (fits the second cache) or large.
use strict;
use warnings;
use Time::HiRes qw(time);
my $keys = $ARGV[0] eq "small" ? 128 : 1 << 20;
my %table;
keys(%table) = $keys;
$table{"k$_"} = $_ * 3 for 0 .. $keys - 1;
my ($state, $sum, $count) = (12345, 0, 2_000_000);
my $begun = time;
for (1 .. $count) {
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    $sum += $table{ "k" . (($state >> 8) % $keys) };
}
my $took = time - $begun;
printf "sum %d\nop_ns %.4f\nphase_s %.4f\n", $sum, $took / $count * 1e9, $took;
