"""What a bare ``pytest`` leaves out and CI runs: whole programs, and further cases of what a quicker test shows too.

Tests are named by file and function, or by file and function with parameters; ``ALL`` stands for a whole file. A name
that no test has is an error.
"""

ALL = {"*"}
CI_ONLY: dict[str, set[str]] = {
    "conformance/test_losses.py": {"test_unbiased_normaliser"},
    "conformance/test_mutants.py": ALL,
    "conformance/test_room.py": {"test_samplers_and_losses_of_ones_own_pass", "test_the_room_needs_nothing_but_candax"},
    "conformance/test_samplers.py": {
        "test_sampler[bernoulli-None]",
        "test_sampler[ivf_bq grouped-None]",
        "test_sampler[learned_unigram decaying-None]",
        "test_sampler[lsh-None]",
        "test_sampler[with_tail-None]",
    },
    "data/test_cache.py": ALL,
    "data/test_flat.py": {"test_the_same_training_as_padded"},
    "data/test_flattening.py": {"test_counts_lie_within_bounds_and_examples_keep_their_labels"},
    "data/test_python_stdlib.py": {"test_the_same_bytes_under_any_hash_seed"},
    "diagnostics/test_diagnose.py": ALL,
    "diagnostics/test_report.py": ALL,
    "diagnostics/test_staleness.py": ALL,
    "experiments/test_ann.py": ALL,
    "experiments/test_css_figure1.py": ALL,
    "experiments/test_css_figure2.py": ALL,
    "experiments/test_css_figure3.py": ALL,
    "experiments/test_diagnose.py": ALL,
    "experiments/test_lns_figure3.py": ALL,
    "experiments/test_lns_tables.py": ALL,
    "experiments/test_side_by_side.py": ALL,
    "experiments/test_word2vec.py": ALL,
    "experiments/test_word2vec_questions.py": ALL,
    "frontdoor/test_bad_input.py": {"test_labels_of_every_integer_type_are_taken[int8]"},
    "frontdoor/test_composition.py": {
        "test_a_step_with_an_id_out_of_range_writes_nothing[spoil_label]",
        "test_several_heads_some_of_one_table_have_the_dense_gradient_and_follow",
        "test_steps_in_jax_jit_and_in_a_scan_are_those_of_nnx_jit",
    },
    "frontdoor/test_following.py": {
        "test_samplers_follow_training_as_they_do_in_fit[ivf_bq-by_modules]",
        "test_samplers_follow_training_as_they_do_in_fit[ivf_bq-by_pure_functions]",
        "test_samplers_follow_training_as_they_do_in_fit[lsh-by_pure_functions]",
    },
    "frontdoor/test_meshes.py": {"test_on_eight_devices"},
    "frontdoor/test_row_gradients.py": {
        "test_every_kind_of_sampler_has_the_dense_gradient[ivf_bq]",
        "test_every_kind_of_sampler_has_the_dense_gradient[lsh]",
        "test_micro_batches_in_a_list_have_the_weighted_mean_of_dense_gradients",
    },
    "losses/test_contrastive.py": ALL,
    "losses/test_d_softmax.py": ALL,
    "losses/test_full.py": {"test_any_likelihood_over_all_classes_is_the_full_softmax[css]"},
    "losses/test_margins.py": {
        "test_full_softmax_with_arcface_and_its_gradients_through_the_lengths",
        "test_without_a_margin_it_is_the_scaled_cosine_softmax",
    },
    "models/test_gru.py": ALL,
    "models/test_heads.py": {
        "test_a_large_table_is_drawn_in_parts_from_the_same_distribution",
        "test_hits_are_those_of_brute_force",
    },
    "models/test_links_and_tower.py": ALL,
    "models/test_projection.py": ALL,
    "models/test_windows.py": ALL,
    "recipes/test_common.py": {
        "test_a_study_that_was_killed_goes_on_and_shows_means_over_seeds",
        "test_a_training_that_was_killed_goes_on_where_it_was",
    },
    "rows/test_by_rows.py": {
        "test_untouched_rows_stay_bit_for_bit",
        "test_with_every_row_touched_it_is_the_dense_optimizer",
    },
    "samplers/lsh/test_hashes.py": ALL,
    "samplers/lsh/test_laws.py": {"test_sampler"},
    "samplers/lsh/test_sampler.py": {
        "test_css_over_rebuilt_indexes_estimates_the_normaliser_without_bias",
        "test_rows_of_several_steps_that_move_together_end_where_single_steps_put_them[30]",
    },
    "samplers/lsh/test_tables.py": {"test_a_reservoir_is_uniform_over_what_came"},
    "samplers/test_bernoulli.py": {"test_a_long_tail_is_drawn_as_stated"},
    "samplers/test_distinct.py": {
        "test_order_of_two_from_five_is_successive_sampling[streamed]",
        "test_stream_returns_distinct_ids_and_ordered_times[prob1]",
    },
    "samplers/test_grouping.py": {
        "test_a_group_has_its_labels_its_best_and_a_fill",
        "test_the_fill_is_uniform_over_the_others",
    },
    "samplers/test_hashing_forest.py": {
        "test_slots_without_a_class_are_masked",
        "test_trees_are_built_anew_every_thousand_steps_and_training_goes_on",
    },
    "samplers/test_ivf_index.py": ALL,
    "samplers/test_ivf_kmeans.py": ALL,
    "samplers/test_ivf_sampler.py": {
        "test_one_training_step_needs_no_more_memory_for_more_classes_and_copies_no_table[rotated-4]",
        "test_training_with_updates_and_refresh_keeps_the_index_current[mean]",
    },
    "samplers/test_learned_clusters.py": {"test_counts_are_of_what_is_drawn[40]"},
    "samplers/test_learned_unigram.py": {
        "test_draws_agree_with_the_memory_at_every_step",
        "test_without_decay_every_label_is_remembered_alike[1]",
    },
    "samplers/test_partial_fc.py": ALL,
    "samplers/test_thresholds.py": ALL,
    "test_blocks.py": {"test_equals_plain_computation", "test_ties_go_to_the_lower_id"},
    "test_benchmarks.py": ALL,
    "test_cli.py": ALL,
    "test_doctests.py": ALL,
    "test_examples.py": {"test_an_example_learns", "test_the_page_runs"},
    "test_lowering.py": ALL,
    "test_notebooks.py": {"test_notebook"},
    "test_readme.py": {"test_the_notebook_example_runs", "test_the_shorter_examples_run"},
    "training/test_bfloat16.py": {
        "test_stochastic_rounding_trains_like_float32_where_rounding_to_the_nearest_stands_still"
    },
    "training/test_fit.py": {
        "test_a_run_in_parts_is_the_whole_run[10-Loader]",
        "test_a_run_in_parts_is_the_whole_run[10-list]",
        "test_a_run_in_parts_is_the_whole_run[5-Stateful]",
        "test_a_signal_ends_the_step_and_saves",
        "test_bad_batches_say_which_and_why",
        "test_batches_of_any_kind_train_alike",
        "test_others_keep_their_arrays",
        "test_what_is_done_while_training_leaves_the_trainer_unharmed",
        "test_what_the_user_s_functions_raise_loses_nothing",
    },
    "training/test_launch.py": {"test_two_processes_train_as_one"},
    "training/test_loop.py": {
        "test_a_killed_run_ends_bit_for_bit_where_an_unbroken_run_ends",
        "test_hash_tables_are_carried_through_checkpoints",
        "test_stopping_and_going_on_changes_nothing",
    },
    "training/test_normalized.py": {"test_a_step_is_the_ordinary_dense_step_through_the_lengths"},
    "training/test_step.py": {
        "test_all_classes_as_candidates_train_like_the_full_softmax",
        "test_cost_does_not_grow_with_the_number_of_classes[log_uniform-False]",
        "test_training_learns",
    },
    "training/test_word2vec.py": ALL,
}
